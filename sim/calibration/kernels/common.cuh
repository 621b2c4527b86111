// What all kernels share: 16-bit brain floats as raw bits, 16-byte loads, and one tensor-core product of a warp.
//
// No header of the CUDA toolkit is needed, so the NVRTC wheel alone compiles the kernels. Under SERVESIM_EMULATED the
// CPU emulator of the tests brings its own `mma_16x8x16` with the same contract.
#pragma once

typedef unsigned short bf16;  // raw bits of a bfloat16

struct alignas(16) Vector16 {  // 16 bytes: one global memory transaction of a thread
    unsigned int word[4];
};

__device__ inline float bf16_to_float(bf16 bits) { return __uint_as_float(static_cast<unsigned int>(bits) << 16); }

// Round to nearest, ties to even; finite inputs only.
__device__ inline bf16 float_to_bf16(float value) {
    const unsigned int bits = __float_as_uint(value);
    return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Two neighbours in one register, the lower index in the lower half, as tensor cores want them.
__device__ inline unsigned int pack_bf16(float low, float high) {
    return static_cast<unsigned int>(float_to_bf16(low)) | (static_cast<unsigned int>(float_to_bf16(high)) << 16);
}

__device__ inline float low_half(unsigned int word) { return __uint_as_float(word << 16); }
__device__ inline float high_half(unsigned int word) { return __uint_as_float(word & 0xffff0000u); }

// One 32-bit load of two neighbouring bf16; `pointer` is 4-byte aligned.
__device__ inline unsigned int load_pair(const bf16* pointer) {
    return *reinterpret_cast<const unsigned int*>(pointer);
}

__device__ inline Vector16 load_16(const bf16* pointer) { return *reinterpret_cast<const Vector16*>(pointer); }
__device__ inline void store_16(bf16* pointer, Vector16 value) { *reinterpret_cast<Vector16*>(pointer) = value; }

#ifndef SERVESIM_EMULATED
// d += a b for a 16x16 (row major), b 16x8 (column major), d 16x8 in float32; all 32 lanes of a warp take part.
// With group = lane / 4 and pair = 2 (lane % 4), a lane holds
//   a[0..3]: rows group, group + 8, group, group + 8 at columns pair, pair, pair + 8, pair + 8 (two neighbours each),
//   b[0..1]: rows pair and pair + 8 (two neighbours each) of column group,
//   d[0..3]: (group, pair), (group, pair + 1), (group + 8, pair), (group + 8, pair + 1).
__device__ inline void mma_16x8x16(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

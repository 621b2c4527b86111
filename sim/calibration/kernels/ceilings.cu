// What the device can do at most: streaming copy and read, float32 FMA and bf16 tensor-core loops, an empty kernel.
//
// The loops are verified too: with operands of ones every accumulator counts its own iterations.
#include "common.cuh"

// Grid-stride copy of `count` pieces of 16 bytes.
extern "C" __global__ void stream_copy(const Vector16* from, Vector16* to, long long count) {
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        to[i] = from[i];
}

// Grid-stride read of `count` pieces; every thread writes the exclusive-or of its words, so that no load can be left out.
extern "C" __global__ void stream_read(const Vector16* from, unsigned int* sums, long long count) {
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    const long long mine = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned int sum = 0;
    for (long long i = mine; i < count; i += stride) {
        const Vector16 piece = from[i];
        sum ^= piece.word[0] ^ piece.word[1] ^ piece.word[2] ^ piece.word[3];
    }
    sums[mine] = sum;
}

constexpr int CHAINS = 8;  // independent accumulators, to hide the latency of the unit

// 2 * CHAINS * iterations FLOP a thread; out[thread] = start + CHAINS * iterations * step where step * 1 is added.
extern "C" __global__ void peak_fma(float* out, float one, float step, int iterations) {
    float chain[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) chain[c] = 0.0f;
    for (int i = 0; i < iterations; ++i)
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) chain[c] = fmaf(one, step, chain[c]);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += chain[c];
    out[static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

// 4096 * CHAINS * iterations FLOP a warp; with ones every element of a product adds 16 to its accumulator.
extern "C" __global__ void peak_mma(float* out, unsigned int ones, int iterations) {
    float chain[CHAINS][4];
    const unsigned int a[4] = {ones, ones, ones, ones}, b[2] = {ones, ones};
#pragma unroll
    for (int c = 0; c < CHAINS; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) chain[c][e] = 0.0f;
    for (int i = 0; i < iterations; ++i)
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) mma_16x8x16(chain[c], a, b);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += chain[c][0] + chain[c][1] + chain[c][2] + chain[c][3];
    out[static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void empty() {}

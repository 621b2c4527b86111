// C = A B^T on tensor cores, for machines without cuBLAS: A [m, k], B [n, k] (weights of a linear layer), C [m, n].
//
// A block computes a TILE_M x TILE_N piece, its warps WARP_M x WARP_N each, over slices of 32 of k that are read into
// registers while the previous slice is multiplied. k and n must be multiples of 8; edges in m, n and k are handled.
#include "common.cuh"

namespace {

constexpr int SLICE = 32;
constexpr int ROW = SLICE + 8;  // padded row in shared memory

// Rows [first, first + ROWS) of one slice, as 16-byte pieces in registers; zeros outside the matrix.
template <int ROWS, int THREADS>
struct Piece {
    static constexpr int COUNT = (ROWS * SLICE / 8 + THREADS - 1) / THREADS;
    Vector16 data[COUNT];

    __device__ inline void load(const bf16* matrix, int first, int num_rows, int start, int k) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int index = i * THREADS + threadIdx.x;
            const int row = first + index / (SLICE / 8), column = start + (index % (SLICE / 8)) * 8;
            const bool inside = index < ROWS * SLICE / 8 && row < num_rows && column < k;
            data[i] = inside ? load_16(matrix + static_cast<long long>(row) * k + column) : Vector16{{0, 0, 0, 0}};
        }
    }

    __device__ inline void store(bf16 (&shared)[ROWS][ROW]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index < ROWS * SLICE / 8) store_16(&shared[index / (SLICE / 8)][(index % (SLICE / 8)) * 8], data[i]);
        }
    }
};

template <int TILE_M, int TILE_N>
struct alignas(16) Slices {
    bf16 a[TILE_M][ROW];
    bf16 b[TILE_N][ROW];
};

template <int TILE_M, int TILE_N, int WARP_M, int WARP_N>
__device__ inline void gemm_body(const bf16* a, const bf16* b, bf16* c, int m, int n, int k) {
    constexpr int WARPS_N = TILE_N / WARP_N, THREADS = TILE_M / WARP_M * WARPS_N * 32;
    constexpr int MS = WARP_M / 16, NS = WARP_N / 8;
    __shared__ Slices<TILE_M, TILE_N> slices;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = 2 * (lane % 4);
    const int first_m = blockIdx.y * TILE_M, first_n = blockIdx.x * TILE_N;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

    float total[MS][NS][4];
#pragma unroll
    for (int i = 0; i < MS; ++i)
#pragma unroll
        for (int j = 0; j < NS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) total[i][j][e] = 0.0f;

    Piece<TILE_M, THREADS> piece_a;
    Piece<TILE_N, THREADS> piece_b;
    piece_a.load(a, first_m, m, 0, k);
    piece_b.load(b, first_n, n, 0, k);
    for (int start = 0; start < k; start += SLICE) {
        __syncthreads();
        piece_a.store(slices.a);
        piece_b.store(slices.b);
        __syncthreads();
        piece_a.load(a, first_m, m, start + SLICE, k);
        piece_b.load(b, first_n, n, start + SLICE, k);
#pragma unroll
        for (int s = 0; s < SLICE; s += 16) {
            unsigned int left[MS][4];
#pragma unroll
            for (int i = 0; i < MS; ++i)
#pragma unroll
                for (int part = 0; part < 4; ++part)
                    left[i][part] =
                        load_pair(&slices.a[warp_m + i * 16 + group + part % 2 * 8][s + pair + part / 2 * 8]);
#pragma unroll
            for (int j = 0; j < NS; ++j) {
                const bf16* at = &slices.b[warp_n + j * 8 + group][s + pair];
                const unsigned int right[2] = {load_pair(at), load_pair(at + 8)};
#pragma unroll
                for (int i = 0; i < MS; ++i) mma_16x8x16(total[i][j], left[i], right);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < MS; ++i)
#pragma unroll
        for (int j = 0; j < NS; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = first_m + warp_m + i * 16 + group + half * 8, column = first_n + warp_n + j * 8 + pair;
                if (row >= m || column >= n) continue;
                const unsigned int two = pack_bf16(total[i][j][2 * half], total[i][j][2 * half + 1]);
                *reinterpret_cast<unsigned int*>(c + static_cast<long long>(row) * n + column) = two;
            }
}

}  // namespace

// 256 threads, grid (ceil(n / 128), ceil(m / 128)): many tokens.
extern "C" __global__ void __launch_bounds__(256) gemm_128x128(const bf16* a, const bf16* b, bf16* c, int m, int n,
                                                               int k) {
    gemm_body<128, 128, 64, 32>(a, b, c, m, n, k);
}

// 128 threads, grid (ceil(n / 32), ceil(m / 16)): few tokens, the weights are what is read.
extern "C" __global__ void __launch_bounds__(128) gemm_16x32(const bf16* a, const bf16* b, bf16* c, int m, int n,
                                                             int k) {
    gemm_body<16, 32, 16, 8>(a, b, c, m, n, k);
}

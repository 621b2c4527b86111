// Causal attention of prompt chunks over a paged cache, on tensor cores: 64 queries of one head per block.
//
// Each of four warps owns 16 query rows. Keys come by tiles of 64 tokens into shared memory, values transposed, so that
// both are the column-major operand of a warp product. Softmax runs in registers; a row's four lanes agree by shuffles.
// The new tokens' keys and values are in the cache already: a chunk of n tokens over m earlier ones has context m + n.
// Layouts: query and out [tokens of all chunks, heads, dim]; caches [block, slot, kv_heads, dim].
#include "common.cuh"

namespace {

constexpr int QUERIES = 64;
constexpr int KEYS = 64;
constexpr int PREFILL_THREADS = 128;
constexpr int PAD = 8;  // elements behind each row in shared memory: rows start in different banks
constexpr float MASKED = -1e30f;

template <int HEAD_DIM>
struct alignas(16) Tile {
    bf16 keys[KEYS][HEAD_DIM + PAD];
    bf16 values[HEAD_DIM][KEYS + PAD];  // transposed
};

// All threads: tokens [first, first + KEYS) of a sequence; zeros behind its context.
template <int HEAD_DIM>
__device__ inline void load_tile(Tile<HEAD_DIM>& tile, const bf16* keys, const bf16* values, const int* blocks,
                                 int block_size, int kv_heads, int kv_head, int first, int context) {
    constexpr int CHUNKS = HEAD_DIM / 8;
    for (int i = threadIdx.x; i < KEYS * CHUNKS; i += PREFILL_THREADS) {
        const int row = i / CHUNKS, column = (i % CHUNKS) * 8, token = first + row;
        Vector16 key = {{0, 0, 0, 0}}, value = {{0, 0, 0, 0}};
        if (token < context) {
            const long long slot = static_cast<long long>(blocks[token / block_size]) * block_size + token % block_size;
            const long long offset = (slot * kv_heads + kv_head) * HEAD_DIM + column;
            key = load_16(keys + offset);
            value = load_16(values + offset);
        }
        store_16(&tile.keys[row][column], key);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            tile.values[column + 2 * j][row] = static_cast<bf16>(value.word[j] & 0xffffu);
            tile.values[column + 2 * j + 1][row] = static_cast<bf16>(value.word[j] >> 16);
        }
    }
}

__device__ inline float row_maximum(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ inline float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

template <int HEAD_DIM>
__device__ inline void prefill_body(const bf16* query, const bf16* keys, const bf16* values, const int* block_table,
                                    const int* query_starts, const int* context_lengths, bf16* out, int max_blocks,
                                    int block_size, int heads, int kv_heads, float scale) {
    constexpr int STEPS = HEAD_DIM / 16;  // products along the head dimension
    constexpr int COLUMNS = HEAD_DIM / 8;
    __shared__ Tile<HEAD_DIM> tile;

    const int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (heads / kv_heads);
    const int chunk_start = query_starts[sequence], num_queries = query_starts[sequence + 1] - chunk_start;
    const int first_query = (gridDim.x - 1 - blockIdx.x) * QUERIES;  // the longest rows first
    if (first_query >= num_queries) return;
    const int context = context_lengths[sequence], prefix = context - num_queries;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = 2 * (lane % 4);
    const int row[2] = {first_query + warp * 16 + group, first_query + warp * 16 + group + 8};
    const int* blocks = block_table + static_cast<long long>(sequence) * max_blocks;

    unsigned int q[STEPS][4];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int r = row[part % 2], column = s * 16 + pair + (part / 2) * 8;
            const long long at = (static_cast<long long>(chunk_start + r) * heads + head) * HEAD_DIM + column;
            q[s][part] = r < num_queries ? load_pair(query + at) : 0u;
        }
    }

    float total[COLUMNS][4], maximum[2] = {MASKED, MASKED}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[c][i] = 0.0f;

    const int last_key = min(context, prefix + first_query + QUERIES);
    for (int first = 0; first < last_key; first += KEYS) {
        __syncthreads();
        load_tile<HEAD_DIM>(tile, keys, values, blocks, block_size, kv_heads, kv_head, first, context);
        __syncthreads();

        float score[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) score[n][i] = 0.0f;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const bf16* at = &tile.keys[n * 8 + group][s * 16 + pair];
                const unsigned int b[2] = {load_pair(at), load_pair(at + 8)};
                mma_16x8x16(score[n], q[s], b);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = first + n * 8 + pair + i % 2;
                score[n][i] = key <= prefix + row[i / 2] ? score[n][i] * scale : MASKED;
            }
        }

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = maximum[half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) top = fmaxf(top, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
            top = row_maximum(top);
            const float kept = __expf(maximum[half] - top);
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    score[n][i] = score[n][i] > 0.5f * MASKED ? __expf(score[n][i] - top) : 0.0f;
                    added += score[n][i];
                }
            }
            maximum[half] = top;
            sum[half] = sum[half] * kept + row_sum(added);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                total[c][2 * half] *= kept;
                total[c][2 * half + 1] *= kept;
            }
        }

#pragma unroll
        for (int s = 0; s < KEYS / 16; ++s) {
            const unsigned int p[4] = {
                pack_bf16(score[2 * s][0], score[2 * s][1]), pack_bf16(score[2 * s][2], score[2 * s][3]),
                pack_bf16(score[2 * s + 1][0], score[2 * s + 1][1]), pack_bf16(score[2 * s + 1][2], score[2 * s + 1][3])};
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const bf16* at = &tile.values[c * 8 + group][s * 16 + pair];
                const unsigned int b[2] = {load_pair(at), load_pair(at + 8)};
                mma_16x8x16(total[c], p, b);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row[half] >= num_queries) continue;
        const float factor = 1.0f / sum[half];
        bf16* to = out + (static_cast<long long>(chunk_start + row[half]) * heads + head) * HEAD_DIM;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const unsigned int two = pack_bf16(total[c][2 * half] * factor, total[c][2 * half + 1] * factor);
            *reinterpret_cast<unsigned int*>(to + c * 8 + pair) = two;
        }
    }
}

}  // namespace

#define PREFILL_ATTENTION(DIM)                                                                                        \
    extern "C" __global__ void __launch_bounds__(PREFILL_THREADS) prefill_attention_d##DIM(                           \
        const bf16* query, const bf16* keys, const bf16* values, const int* block_table, const int* query_starts,     \
        const int* context_lengths, bf16* out, int max_blocks, int block_size, int heads, int kv_heads, float scale) { \
        prefill_body<DIM>(query, keys, values, block_table, query_starts, context_lengths, out, max_blocks,           \
                          block_size, heads, kv_heads, scale);                                                        \
    }

PREFILL_ATTENTION(64)
PREFILL_ATTENTION(128)

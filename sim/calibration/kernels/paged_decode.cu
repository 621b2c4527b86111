// Decode attention over a paged cache: one new token per sequence, grouped query heads, the context cut into splits.
//
// A sub-group of HEAD_DIM / 8 lanes reads one token's key (16 bytes a lane) for all query heads of its key-value head,
// with a running softmax in registers. The sub-groups of a block are merged in shared memory, the splits of a sequence
// by `paged_decode_combine`. Layouts: query and out [batch, heads, dim]; caches [block, slot, kv_heads, dim]; partials
// [batch, heads, splits, dim + 2] with (maximum, sum) behind the values.
#include "common.cuh"

namespace {

constexpr int DECODE_THREADS = 128;
constexpr int ELEMENTS = 8;  // of a lane: 16 bytes
constexpr float NOTHING = -1e30f;

struct Paged {
    const bf16* keys;
    const bf16* values;
    const int* block_table;  // [batch, max_blocks]
    int max_blocks;
    int block_size;
    int kv_heads;
};

__device__ inline long long token_offset(const Paged& cache, int sequence, int kv_head, int token, int dim) {
    const long long table = static_cast<long long>(sequence) * cache.max_blocks;
    const long long block = cache.block_table[table + token / cache.block_size];
    return ((block * cache.block_size + token % cache.block_size) * cache.kv_heads + kv_head) * dim;
}

__device__ inline void unpack(Vector16 packed, float (&out)[ELEMENTS]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = low_half(packed.word[i]);
        out[2 * i + 1] = high_half(packed.word[i]);
    }
}

template <int HEAD_DIM, int GROUP>
__device__ inline void decode_body(const bf16* query, Paged cache, const int* context_lengths, float* partials,
                                   float scale) {
    constexpr int LANES = HEAD_DIM / ELEMENTS;
    constexpr int SUBGROUPS = DECODE_THREADS / LANES;
    __shared__ float shared_values[SUBGROUPS][HEAD_DIM];
    __shared__ float shared_maximum[SUBGROUPS];
    __shared__ float shared_sum[SUBGROUPS];

    const int split = blockIdx.x, num_splits = gridDim.x, kv_head = blockIdx.y, sequence = blockIdx.z;
    const int subgroup = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int heads = cache.kv_heads * GROUP;
    const int context = context_lengths[sequence];
    const int share = (context + num_splits - 1) / num_splits;
    const int first = split * share, last = min(context, first + share);

    float q[GROUP][ELEMENTS], total[GROUP][ELEMENTS], maximum[GROUP], sum[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        const long long head = static_cast<long long>(sequence) * heads + kv_head * GROUP + g;
        unpack(load_16(query + head * HEAD_DIM + lane * ELEMENTS), q[g]);
        maximum[g] = NOTHING;
        sum[g] = 0.0f;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) {
            q[g][i] *= scale;
            total[g][i] = 0.0f;
        }
    }

    // All sub-groups of a warp go round the same number of times, since they shuffle together. The next token's key and
    // value are on their way while this one's are used.
    Vector16 next_key = {{0, 0, 0, 0}}, next_value = {{0, 0, 0, 0}};
    const auto fetch = [&](int token) {
        if (token >= last) return;
        const long long offset = token_offset(cache, sequence, kv_head, token, HEAD_DIM) + lane * ELEMENTS;
        next_key = load_16(cache.keys + offset);
        next_value = load_16(cache.values + offset);
    };
    fetch(first + subgroup);
    for (int start = first; start < last; start += SUBGROUPS) {
        const bool valid = start + subgroup < last;
        float key[ELEMENTS], value[ELEMENTS];
        unpack(next_key, key);
        unpack(next_value, value);
        fetch(start + subgroup + SUBGROUPS);
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float score = 0.0f;
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) score += q[g][i] * key[i];
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
            if (!valid) continue;
            const float grown = fmaxf(maximum[g], score);
            const float kept = __expf(maximum[g] - grown), added = __expf(score - grown);
            maximum[g] = grown;
            sum[g] = sum[g] * kept + added;
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) total[g][i] = total[g][i] * kept + added * value[i];
        }
    }

#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) shared_values[subgroup][lane * ELEMENTS + i] = total[g][i];
        if (lane == 0) {
            shared_maximum[subgroup] = maximum[g];
            shared_sum[subgroup] = sum[g];
        }
        __syncthreads();
        float top = NOTHING, weight = 0.0f;
#pragma unroll 1
        for (int s = 0; s < SUBGROUPS; ++s) top = fmaxf(top, shared_maximum[s]);
#pragma unroll 1
        for (int s = 0; s < SUBGROUPS; ++s) weight += shared_sum[s] * __expf(shared_maximum[s] - top);
        const long long head = static_cast<long long>(sequence) * heads + kv_head * GROUP + g;
        float* out = partials + (head * num_splits + split) * (HEAD_DIM + 2);
        for (int d = threadIdx.x; d < HEAD_DIM; d += DECODE_THREADS) {
            float merged = 0.0f;
#pragma unroll 1
            for (int s = 0; s < SUBGROUPS; ++s) merged += shared_values[s][d] * __expf(shared_maximum[s] - top);
            out[d] = merged;
        }
        if (threadIdx.x == 0) {
            out[HEAD_DIM] = top;
            out[HEAD_DIM + 1] = weight;
        }
    }
}

}  // namespace

#define PAGED_DECODE(DIM, GROUP)                                                                                      \
    extern "C" __global__ void __launch_bounds__(DECODE_THREADS) paged_decode_d##DIM##_g##GROUP(                      \
        const bf16* query, const bf16* keys, const bf16* values, const int* block_table, const int* context_lengths, \
        float* partials, int max_blocks, int block_size, int kv_heads, float scale) {                                 \
        const Paged cache = {keys, values, block_table, max_blocks, block_size, kv_heads};                            \
        decode_body<DIM, GROUP>(query, cache, context_lengths, partials, scale);                                      \
    }

PAGED_DECODE(64, 4)
PAGED_DECODE(64, 8)
PAGED_DECODE(128, 1)
PAGED_DECODE(128, 4)
PAGED_DECODE(128, 8)

// One block per (head, sequence), at least `dim` threads: the splits' partial results become the output.
extern "C" __global__ void paged_decode_combine(const float* partials, bf16* out, int num_splits, int dim) {
    const long long head = static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* mine = partials + head * num_splits * (dim + 2);
    const int d = threadIdx.x;
    if (d >= dim) return;
    float top = NOTHING, weight = 0.0f, merged = 0.0f;
    for (int s = 0; s < num_splits; ++s) top = fmaxf(top, mine[s * (dim + 2) + dim]);
    for (int s = 0; s < num_splits; ++s) {
        const float factor = __expf(mine[s * (dim + 2) + dim] - top);
        weight += mine[s * (dim + 2) + dim + 1] * factor;
        merged += mine[s * (dim + 2) + d] * factor;
    }
    out[head * dim + d] = float_to_bf16(merged / weight);
}

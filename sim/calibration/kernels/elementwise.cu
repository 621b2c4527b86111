// The elementwise operations of a layer: RMS norm with the residual added, rotary embedding, gated activation.
#include "common.cuh"

// One block (256 threads) a row: residual += input, then out = residual / rms(residual) * weight.
extern "C" __global__ void __launch_bounds__(256) add_rms_norm(const bf16* input, bf16* residual, const bf16* weight,
                                                               bf16* out, int width, float epsilon) {
    __shared__ float parts[8];
    const long long row = static_cast<long long>(blockIdx.x) * width;
    float square = 0.0f;
    for (int i = 2 * threadIdx.x; i < width; i += 2 * blockDim.x) {
        const unsigned int in = load_pair(input + row + i), old = load_pair(residual + row + i);
        const unsigned int both = pack_bf16(low_half(in) + low_half(old), high_half(in) + high_half(old));
        *reinterpret_cast<unsigned int*>(residual + row + i) = both;
        square += low_half(both) * low_half(both) + high_half(both) * high_half(both);
    }
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = square;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < blockDim.x / 32; ++w) total += parts[w];
    const float factor = rsqrtf(total / width + epsilon);
    for (int i = 2 * threadIdx.x; i < width; i += 2 * blockDim.x) {
        const unsigned int both = load_pair(residual + row + i), scale = load_pair(weight + i);
        *reinterpret_cast<unsigned int*>(out + row + i) =
            pack_bf16(low_half(both) * factor * low_half(scale), high_half(both) * factor * high_half(scale));
    }
}

// One block a token, in place on [tokens, heads, dim] of queries and keys together: (x, y) of the two halves of a head
// turn by position * base^(-2i/dim); cos_sin [tokens, dim] holds the cosines, then the sines, of each token.
extern "C" __global__ void __launch_bounds__(256) rotary(bf16* rows, const float* cos_sin, int heads, int dim) {
    const int half = dim / 2;
    const long long token = blockIdx.x;
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        const int head = i / half, j = i % half;
        bf16* at = rows + (token * heads + head) * dim + j;
        const float cosine = cos_sin[token * dim + j], sine = cos_sin[token * dim + half + j];
        const float x = bf16_to_float(at[0]), y = bf16_to_float(at[half]);
        at[0] = float_to_bf16(x * cosine - y * sine);
        at[half] = float_to_bf16(y * cosine + x * sine);
    }
}

// Grid-stride: out[row, i] = silu(both[row, i]) * both[row, width + i].
extern "C" __global__ void __launch_bounds__(256) silu_multiply(const bf16* both, bf16* out, int rows, int width) {
    const long long count = static_cast<long long>(rows) * width / 2;
    for (long long p = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; p < count;
         p += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long row = 2 * p / width, column = 2 * p % width;
        const unsigned int gate = load_pair(both + row * 2 * width + column);
        const unsigned int up = load_pair(both + row * 2 * width + width + column);
        const float low = low_half(gate) / (1.0f + __expf(-low_half(gate))) * low_half(up);
        const float high = high_half(gate) / (1.0f + __expf(-high_half(gate))) * high_half(up);
        *reinterpret_cast<unsigned int*>(out + row * width + column) = pack_bf16(low, high);
    }
}

/* A stand-in for cuBLAS on the CPU, limited to the calls in use: the products that `intaglio.plugins.cuda.cublas` asks
 * for, as cuBLAS reads their arguments (columns first), and its errors for what it does not accept. */

#include <stddef.h>
#include <stdint.h>

enum { SUCCESS, NOT_INITIALIZED, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { FLOAT16 = 2, INT8 = 3, INT32 = 10 };              /* cudaDataType_t */
enum { COMPUTE_FLOAT = 68, COMPUTE_INT32 = 72 };         /* cublasComputeType_t */

struct product {
    int m, n, k;
    const void *a, *b;
    void *c;
    double first, last; /* of C */
};

static struct { int ready; void *workspace, *stream; } state;
struct product cublas_products[1024];
int cublas_calls;

int cublasCreate_v2(void **handle) {
    state.ready = 1;
    state.workspace = state.stream = NULL;
    *handle = &state;
    return SUCCESS;
}

int cublasDestroy_v2(void *handle) {
    state.ready = 0;
    return handle == &state ? SUCCESS : NOT_INITIALIZED;
}

int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) {
    if (handle != &state || !state.ready) return NOT_INITIALIZED;
    state.workspace = workspace;
    return workspace && bytes ? SUCCESS : INVALID_VALUE;
}

int cublasSetStream_v2(void *handle, void *stream) {
    if (handle != &state || !state.ready) return NOT_INITIALIZED;
    state.stream = stream;
    return SUCCESS;
}

int cublasGemmEx(void *handle, int a_operation, int b_operation, int m, int n, int k, const void *one, const void *a,
                 int a_type, int lda, const void *b, int b_type, int ldb, const void *zero, void *c, int c_type,
                 int ldc, int compute, int algorithm) {
    if (handle != &state || !state.ready || !state.workspace || !state.stream) return NOT_INITIALIZED;
    if (a_operation != 1 || b_operation != 0 || algorithm != -1) return NOT_SUPPORTED;
    if (m < 1 || n < 1 || k < 1 || lda < k || ldb < k || ldc < m) return INVALID_VALUE;
    int integers = a_type == INT8 && b_type == INT8 && c_type == INT32 && compute == COMPUTE_INT32;
    int floats = a_type == FLOAT16 && b_type == FLOAT16 && c_type == FLOAT16 && compute == COMPUTE_FLOAT;
    if (!integers && !floats) return NOT_SUPPORTED;
    if (integers && (lda % 4 || ldb % 4 || n % 4 || m % 4)) return NOT_SUPPORTED;
    double scale = integers ? *(const int32_t *)one : *(const float *)one;
    if (scale != 1 || (integers ? *(const int32_t *)zero : *(const float *)zero) != 0) return INVALID_VALUE;
    double value = 0;
    struct product *seen = &cublas_products[cublas_calls++ % 1024];
    *seen = (struct product){m, n, k, a, b, c, 0, 0};
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            size_t x = (size_t)column * ldb, w = (size_t)row * lda, y = (size_t)column * ldc + row;
            if (integers) {
                int32_t sum = 0;
                for (int i = 0; i < k; i++) sum += ((const int8_t *)a)[w + i] * ((const int8_t *)b)[x + i];
                value = ((int32_t *)c)[y] = sum;
            } else {
                float sum = 0;
                for (int i = 0; i < k; i++) sum += (float)((const _Float16 *)a)[w + i] * (float)((const _Float16 *)b)[x + i];
                value = ((_Float16 *)c)[y] = (_Float16)sum;
            }
            if (!row && !column) seen->first = value;
        }
    seen->last = value;
    return SUCCESS;
}

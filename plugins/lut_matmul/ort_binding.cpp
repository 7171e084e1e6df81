#include <algorithm>

#include "plugins/csr_matmul/sparse_rows.h"
#include "plugins/lut_matmul/kernel.h"
#include "plugins/ort/operator.h"
#include "plugins/ort/packed_weight.h"
#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

class LutMatMul final : public Kernel {
public:
    explicit LutMatMul(const Node& node)
        : kernel_(lut_matmul_kernel(node.isa())),
          sparse_kernel_(csr_matmul_kernel(node.isa())),
          kind_(node) {
        const Tensor packed = node.constant(1), lut = node.constant(2);
        if (packed && lut) weight_ = pack(packed, lut);
        const Tensor values = node.constant(3), columns = node.constant(4), row_offsets = node.constant(5);
        if (values && columns && row_offsets) sparse_ = std::make_unique<SparseRows>(values, columns, row_offsets);
    }

    // x [..., K] float32 or float16, packed [N, K·bits/32] int32, lut [N, 2^bits] the same; optional values [nnz] the same, columns
    // [nnz] int32, row_offsets [N+1] int32 -> y [..., N] as x
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        const Weight here = weight_.buffer ? Weight{} : pack(context.input(1), context.input(2));
        const Weight& weight = weight_.buffer ? weight_ : here;
        const LutFormat& format = weight.format;
        const std::unique_ptr<SparseRows> sparse_here = sparse_ ? nullptr : read_sparse(context);
        const SparseRows* const sparse = sparse_ ? sparse_.get() : sparse_here.get();
        if (sparse) check_sparse(*sparse, format.rows);
        const Shape shape = kind_.output_shape(x, format.rows);
        const Tensor output = context.output(0, shape);
        check_like(output, x);
        const int64_t count = shape.rows();
        if (count == 0 || format.rows == 0) return;
        const RealInput values(x);
        const RealOutput y(output);
        multiply(context, weight, values.data(), count, y.data());
        if (sparse) {
            add_sparse_product(context, sparse_kernel_, *sparse, values.data(), count, kind_.depth, y.data(), y.data());
        }
        y.finish();
    }

private:
    struct Weight {
        LutFormat format;
        Buffer buffer;
    };

    // Null where the node has none.
    static std::unique_ptr<SparseRows> read_sparse(const Context& context) {
        const Tensor values = context.input(3), columns = context.input(4), row_offsets = context.input(5);
        if (!values && !columns && !row_offsets) return nullptr;
        if (!values || !columns || !row_offsets) throw Error("values, columns and row_offsets: expected all or none");
        return std::make_unique<SparseRows>(values, columns, row_offsets);
    }

    void check_sparse(const SparseRows& sparse, int64_t rows) const {
        if (sparse.rows() != rows) {
            throw Error("row_offsets: of " + std::to_string(sparse.rows()) + " rows, expected " + std::to_string(rows));
        }
        if (sparse.widest() >= kind_.depth) {
            throw Error("columns: " + std::to_string(sparse.widest()) + ", expected less than " + std::to_string(kind_.depth) + " (K)");
        }
    }

    // y = x·wᵀ. The memory for x is free again afterwards, and in the caches, for the sparse values.
    void multiply(const Context& context, const Weight& weight, const float* x, int64_t count, float* y) const {
        const LutFormat& format = weight.format;
        const Scratch packed_x(size_t(kernel_.x_bytes(format, count)));
        context.parallel_for(count, x_packing_grain(kind_.depth), [&](int64_t begin, int64_t end) {
            kernel_.pack_x(format, x, count, begin, end, packed_x.as<void>());
        });
        const int64_t blocks = (format.rows + LutMatMulKernel::BLOCK - 1) / LutMatMulKernel::BLOCK;
        const int64_t step = kernel_.blocks_at_once(format, count);
        constexpr int64_t PRODUCTS = 500'000;  // some 5 microseconds
        const int64_t grain = PRODUCTS / std::max<int64_t>(count * kind_.depth * LutMatMulKernel::BLOCK * step, 1) + 1;
        context.parallel_for((blocks + step - 1) / step, grain, [&](int64_t begin, int64_t end) {
            kernel_.run(format, packed_x.as<void>(), count, weight.buffer.as<void>(), y, begin * step, std::min(end * step, blocks));
        });
    }

    Weight pack(const Tensor& packed, const Tensor& lut) const {
        const int64_t rows = kind_.rows(packed), entries = int64_t(1) << kind_.bits;
        const Shape expected{rows, entries};
        if (lut.shape != expected) throw Error("lut: shape " + lut.shape.text() + ", expected " + expected.text());
        const RealInput table_values(lut);
        const float* const tables = table_values.data();
        const int32_t* const indices = packed.as<int32_t>();
        const LutFormat format =
            kernel_.choose(tables, rows, kind_.depth, int32_t(kind_.bits), int32_t(kind_.activation_bits));
        Weight weight = {format, Buffer(size_t(std::max<int64_t>(kernel_.weight_bytes(format), 64)))};
        pack_in_pieces(packed, sizeof(int32_t), LutMatMulKernel::BLOCK, [&](int64_t begin, int64_t end) {
            kernel_.pack_weight(format, indices, tables, begin, end, weight.buffer.as<void>());
        });
        return weight;
    }

    const LutMatMulKernel& kernel_;
    const CsrMatMulKernel& sparse_kernel_;
    PackedWeight kind_;
    Weight weight_{};  // where packed and lut are constants of the graph
    std::unique_ptr<SparseRows> sparse_;  // where all of it is
};

}  // namespace

std::unique_ptr<Kernel> create_lut_matmul(const Node& node) { return std::make_unique<LutMatMul>(node); }

bool select_lut_matmul(Isa isa, const MicroKernelWish& wish) { return lut_matmul_kernel(isa).select(wish); }

}  // namespace intaglio::ort

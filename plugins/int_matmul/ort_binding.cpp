// The kernel is int_linear's, without a bias; b is packed in each run, and a where the kernel cannot read it unpacked.
#include "plugins/ort/broadcast.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"
#include "plugins/ort/product.h"

namespace intaglio::ort {
namespace {

// One side's matrices, which are packed one by one, unless that takes no bytes.
class Side {
public:
    // batch: the output's batch axes, and a last axis of 1.
    Side(const char* name, const Tensor& tensor, const Shape& own_batch, const Shape& batch, int64_t bytes)
        : matrices(own_batch.elements()),
          data_(tensor.as<int8_t>()),
          elements_(matrices > 0 ? tensor.shape.elements() / matrices : 0),
          bytes_((bytes + 63) / 64 * 64),  // each begins aligned
          memory_(size_t(checked_product(matrices, bytes_))),
          places_(name, own_batch, batch) {}

    bool is_packed() const { return bytes_ > 0; }
    const int8_t* plain(int64_t matrix) const { return data_ + matrix * elements_; }
    void* packed(int64_t matrix) const { return memory_.as<char>() + matrix * bytes_; }
    // What one of the output's matrices is made from.
    const void* operand(int64_t index) const {
        const int64_t matrix = places_.start(index);
        return is_packed() ? packed(matrix) : plain(matrix);
    }

    int64_t matrices;

private:
    const int8_t* data_;
    int64_t elements_;  // of a matrix
    int64_t bytes_;
    Scratch memory_;
    BroadcastRows places_;
};

class IntMatMul final : public Kernel {
public:
    explicit IntMatMul(const Node& node)
        : kernel_(int_linear_kernel(node.isa())), bits_(int(node.integer("bits"))) {}

    // a [..., M, K] int8, b [..., K, N] int8, optional multiplier [N|1] and shift [N|1] int32
    // -> y [..., M, N] int8|int32; the leading axes broadcast
    void compute(const Context& context) const override {
        const Tensor a = context.input(0), b = context.input(1);
        const Tensor multiplier = context.input(2), shift = context.input(3);
        if (a.shape.rank() < 2 || b.shape.rank() < 2 || a.shape.axis(-1) != b.shape.axis(-2)) {
            throw Error("shapes " + a.shape.text() + " and " + b.shape.text() + " do not multiply");
        }
        check_factors(bits_, multiplier, shift);
        const int64_t rows = a.shape.axis(-2), depth = a.shape.axis(-1), columns = b.shape.axis(-1);
        check_depth(depth);
        const Shape a_batch = batch_of(a.shape), b_batch = batch_of(b.shape), batch = broadcast(a_batch, b_batch);
        Shape shape = batch;
        shape.resize(batch.rank() + 1);
        shape.set_axis(-2, rows);
        shape.set_axis(-1, columns);
        const Tensor output = context.output(0, shape);
        char* const y = static_cast<char*>(output.data);
        if (shape.elements() == 0) return;
        const int64_t matrix_bytes = rows * columns * (bits_ == 8 ? 1 : 4);
        const Factors factors(multiplier, shift, columns, {0, 0});
        const Epilogue epilogue = {bits_, factors.multiplier(), factors.shift(), nullptr, nullptr, nullptr};

        const Side left("a", a, a_batch, batch, kernel_.x_bytes(rows, depth));
        const Side right("b", b, b_batch, batch, kernel_.weight_bytes(depth, columns));
        const int64_t rows_to_pack = left.is_packed() ? left.matrices * rows : 0;
        context.parallel_for(rows_to_pack, packing_grain(depth), [&](int64_t begin, int64_t end) {
            while (begin < end) {
                const int64_t matrix = begin / rows, first = begin % rows, last = std::min(rows, first + end - begin);
                kernel_.pack_x(left.plain(matrix), first, last, depth, left.packed(matrix));
                begin += last - first;
            }
        });
        context.parallel_for(right.matrices, packing_grain(depth * columns), [&](int64_t begin, int64_t end) {
            for (int64_t matrix = begin; matrix < end; ++matrix) {
                kernel_.pack_weight(right.plain(matrix), nullptr, depth, columns, right.packed(matrix));
            }
        });
        const int64_t tasks = kernel_.tasks(rows, depth, columns);
        const int64_t grain = product_grain(rows, depth, columns, tasks);
        context.parallel_for(batch.elements() * tasks, grain, [&](int64_t begin, int64_t end) {
            while (begin < end) {
                const int64_t index = begin / tasks, first = begin % tasks, last = std::min(tasks, first + end - begin);
                kernel_.run(left.operand(index), right.operand(index), rows, depth, columns, epilogue,
                            y + index * matrix_bytes, first, last);
                begin += last - first;
            }
        });
    }

private:
    // The leading axes, and a last one of 1: a row for each matrix.
    static Shape batch_of(const Shape& shape) {
        Shape batch = shape;
        batch.resize(shape.rank() - 1);
        batch.set_axis(-1, 1);
        return batch;
    }

    const IntLinearKernel& kernel_;
    int bits_;
};

}  // namespace

std::unique_ptr<Kernel> create_int_matmul(const Node& node) { return std::make_unique<IntMatMul>(node); }

}  // namespace intaglio::ort

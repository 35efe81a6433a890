// The calls of MPI itself, beside which our backends are measured.
#include <mpi.h>

#include <cstdlib>
#include <cstring>

#include "collective_calls.h"
#include "comm/reduce_kernels.h"

namespace bench {
namespace {

using zero::DType;

void sum_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const void* const slices[] = {in, inout};
  zero::comm::reduce_ordered(slices, *count, DType::kBFloat16,
                             {.out = inout,
                              .out_dtype = DType::kBFloat16,
                              .op = zero::ReduceOp::kSum,
                              .base = zero::comm::ReduceBase::kFirst});
}

class MpiCalls final : public CollectiveCalls {
 public:
  MpiCalls() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    owns_mpi_ = !initialised;
    if (owns_mpi_) MPI_Init(nullptr, nullptr);
    MPI_Type_contiguous(2, MPI_BYTE, &bf16_);
    MPI_Type_commit(&bf16_);
    MPI_Op_create(&sum_bf16, /*commute=*/1, &bf16_sum_);
  }
  ~MpiCalls() override {
    MPI_Op_free(&bf16_sum_);
    MPI_Type_free(&bf16_);
    if (owns_mpi_) MPI_Finalize();
  }

  std::string name() const override { return "openmpi"; }
  void all_gather(const void* in, void* out, std::int64_t numel, DType dtype) override {
    const int count = static_cast<int>(numel);
    MPI_Allgather(in, count, type_of(dtype), out, count, type_of(dtype), MPI_COMM_WORLD);
  }
  void reduce_scatter(const void* in, void* out, std::int64_t numel, DType dtype) override {
    MPI_Reduce_scatter_block(in, out, static_cast<int>(numel), type_of(dtype), sum_of(dtype), MPI_COMM_WORLD);
  }
  void all_reduce(void* inout, std::int64_t numel, DType dtype) override {
    MPI_Allreduce(MPI_IN_PLACE, inout, static_cast<int>(numel), type_of(dtype), sum_of(dtype), MPI_COMM_WORLD);
  }
  void broadcast(void* inout, std::int64_t numel, DType dtype) override {
    MPI_Bcast(inout, static_cast<int>(numel), type_of(dtype), 0, MPI_COMM_WORLD);
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  DType reduced_dtype(DType dtype) const override { return dtype; }

 private:
  MPI_Datatype type_of(DType dtype) const { return dtype == DType::kBFloat16 ? bf16_ : MPI_FLOAT; }
  MPI_Op sum_of(DType dtype) const { return dtype == DType::kBFloat16 ? bf16_sum_ : MPI_SUM; }

  bool owns_mpi_ = false;
  MPI_Datatype bf16_ = MPI_DATATYPE_NULL;
  MPI_Op bf16_sum_ = MPI_OP_NULL;
};

}  // namespace

std::unique_ptr<CollectiveCalls> make_mpi_calls() {
  if (!std::getenv("OMPI_COMM_WORLD_RANK") && !std::getenv("PMI_RANK")) return nullptr;
  return std::make_unique<MpiCalls>();
}

}  // namespace bench

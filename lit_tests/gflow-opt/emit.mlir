// RUN: %gflow-opt %s --pipeline-for=cpu --emit=plan | FileCheck %s --check-prefix=PLAN
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=kernels -o %t.kernels
// RUN: FileCheck %s --check-prefix=KERNELS --input-file=%t.kernels
// RUN: %gflow-opt %t.kernels | FileCheck %s --check-prefix=PARSED
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=llvm-dialect | FileCheck %s --check-prefix=DIALECT
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=llvm | FileCheck %s --check-prefix=LLVM
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=dot | FileCheck %s --check-prefix=DOT
// RUN: not %gflow-opt %s --emit=plan 2>&1 | FileCheck %s --check-prefix=UNPLANNED
// RUN: not %gflow-opt %s --emit=kernels 2>&1 | FileCheck %s --check-prefix=UNPLANNED
// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s --check-prefix=TRITON
// RUN: not %gflow-opt %s --emit=plam 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not %gflow-opt %s --pipeline-for=cpu --emit=kernels --target=abacus 2>&1 | FileCheck %s --check-prefix=TARGET

// PLAN:      @step: {{[0-9]+}} steps, arena {{[0-9,]+}} bytes
// PLAN-NEXT:   least possible in this order: {{[0-9,]+}} bytes
// PLAN:        matmul forward:model.fc {{.*}}model.py:7
// PLAN-NEXT:   (x: 4x8xf32, model.fc.weight: 8x8xf32)
// PLAN-NEXT:   -> %[[#]]: 4x8xf32 in arena:0
// PLAN:        in result:0
// PLAN:      arena offset
// PLAN-NEXT:            0             128

// KERNELS: module {
// KERNELS: // 1 launch: matmul forward:model.fc({{.*}}model.py:7:0)
// KERNELS: llvm.func @gemm_f32
// PARSED: llvm.func @gemm_f32

// DIALECT: llvm.func @gemm_f32
// DIALECT-NOT: scf.for
// LLVM: define void @gemm_f32(ptr %0)

// DOT:      digraph "step" {
// DOT:      subgraph cluster_{{[0-9]+}} {
// DOT-NEXT:   label="forward:model.fc"
// DOT:      -> {{n[0-9]+}} [label="4x8xf32"];

// UNPLANNED: gflow-opt: error: the function '@step' has no memory plan; run --pipeline-for=cpu, or a pipeline that ends in gflow-plan-memory
// TRITON:    # @step for cuda:90: 2 steps, 2 kernels, arena 128 bytes
// TRITON:    #    1  reduce_tanh_sum_{{.*}}(n0=4, in0=arena, s0_0_8=1, out0=result0)
// TRITON-NEXT: fused forward:model.fc(model.py:7:0)
// TRITON:    @triton.jit
// TRITON:    def reduce_tanh_sum_
// UNKNOWN:   gflow-opt: no form 'plam' to emit; did you mean 'plan'? (known: mlir, kernels, llvm-dialect, llvm, plan, dot, triton, launches, stablehlo, onnx, timeline)
// TARGET:    error: no kernels for target 'abacus' as MLIR (known: cpu)

#line = loc("model.py":7:0)
#fc = loc("forward:model.fc"(#line))
func.func @step(%x: tensor<4x8xf32> {gflow.name = "x", gflow.role = "input"},
                %w: tensor<8x8xf32> {gflow.name = "model.fc.weight", gflow.role = "parameter"})
    -> (tensor<4xf32> {gflow.name = "y"}) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc(#fc)
  %1 = "gflow.tanh"(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc(#fc)
  %2 = "gflow.reduce"(%1) {dims = array<i64: 1>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<4xf32> loc(#fc)
  return %2 : tensor<4xf32>
}

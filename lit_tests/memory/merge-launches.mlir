// DEFINE: %{plan} = gflow-fuse,gflow-materialize,gflow-select-kernels{target=cuda:90},gflow-plan-memory
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(%{plan},gflow-merge-launches))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(%{plan},gflow-merge-launches))' | %gflow-opt --gflow-merge-launches | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(%{plan},gflow-merge-launches{least=5}))' | FileCheck %s --check-prefix=FEW
// RUN: not %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{target=cpu},gflow-plan-memory,gflow-merge-launches))' 2>&1 | FileCheck %s --check-prefix=CPU
// RUN: not %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{target=cuda:90},gflow-merge-launches))' 2>&1 | FileCheck %s --check-prefix=EARLY

// CPU: launches are merged for GPUs: run gflow-select-kernels for one first
// EARLY: launches follow from places in memory: run gflow-plan-memory first

// Those of one text share a launch and its block; what stood between them goes behind.
// CHECK-LABEL: func.func @updates(
// CHECK:         "gflow.sub"
// CHECK:         gflow.kernel = {block = array<i64: 1024>, kind = "merged", warps = 4 : i64}, gflow.launch = 0 : i64
// CHECK:         "gflow.sub"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         "gflow.sub"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         "gflow.sub"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         "gflow.exp"
// CHECK:         kind = "region"
// CHECK-NOT:     gflow.launch
// CHECK-LABEL: func.func @chain(
// FEW-LABEL:   func.func @updates(
// FEW:           "gflow.sub"
// FEW:           "gflow.exp"
// FEW-NOT:       gflow.launch
func.func @updates(%x: tensor<64xf32>, %w0: tensor<100xf32>, %g0: tensor<100xf32>, %w1: tensor<101xf32>, %g1: tensor<101xf32>, %w2: tensor<102xf32>, %g2: tensor<102xf32>, %w3: tensor<103xf32>, %g3: tensor<103xf32>)
    -> (tensor<64xf32>, tensor<100xf32> {gflow.alias = 1 : i64}, tensor<101xf32> {gflow.alias = 3 : i64}, tensor<102xf32> {gflow.alias = 5 : i64}, tensor<103xf32> {gflow.alias = 7 : i64}) {
  %u0 = "gflow.sub"(%w0, %g0) : (tensor<100xf32>, tensor<100xf32>) -> tensor<100xf32>
  %e = "gflow.exp"(%x) : (tensor<64xf32>) -> tensor<64xf32>
  %u1 = "gflow.sub"(%w1, %g1) : (tensor<101xf32>, tensor<101xf32>) -> tensor<101xf32>
  %u2 = "gflow.sub"(%w2, %g2) : (tensor<102xf32>, tensor<102xf32>) -> tensor<102xf32>
  %u3 = "gflow.sub"(%w3, %g3) : (tensor<103xf32>, tensor<103xf32>) -> tensor<103xf32>
  return %e, %u0, %u1, %u2, %u3 : tensor<64xf32>, tensor<100xf32>, tensor<101xf32>, tensor<102xf32>, tensor<103xf32>
}

// An op that reads what one of them writes cannot run beside it: three and two are too few.
// CHECK-NOT:     gflow.launch
// CHECK:         return
func.func @chain(%x: tensor<64xf32>, %y: tensor<64xf32>, %z: tensor<64xf32>, %v: tensor<64xf32>, %w: tensor<16x4xf32>)
    -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) {
  %0 = "gflow.exp"(%x) : (tensor<64xf32>) -> tensor<64xf32>
  %1 = "gflow.exp"(%y) : (tensor<64xf32>) -> tensor<64xf32>
  %2 = "gflow.exp"(%z) : (tensor<64xf32>) -> tensor<64xf32>
  %r = "gflow.reverse"(%0) {dims = array<i64: 0>} : (tensor<64xf32>) -> tensor<64xf32>
  %3 = "gflow.exp"(%r) : (tensor<64xf32>) -> tensor<64xf32>
  %4 = "gflow.exp"(%v) : (tensor<64xf32>) -> tensor<64xf32>
  return %0, %1, %2, %3, %4 : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>
}

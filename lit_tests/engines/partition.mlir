// RUN: gflow-opt %s --gflow-partition-engines={min-cost=0} | FileCheck %s
// RUN: gflow-opt %s --gflow-partition-engines={min-cost=1e9} | FileCheck %s --check-prefix=SMALL
// RUN: gflow-opt %s "--gflow-partition-engines={min-cost=0 modules-only=true}" | FileCheck %s --check-prefix=MODULES

// An op of PyTorch's stands between two regions; what does not need it is in the last one.
// CHECK-LABEL: func.func @between
// CHECK: %[[FIRST:.*]] = "gflow.engine"(%arg0)
// CHECK: "gflow.tanh"
// CHECK: "gflow.engine_yield"
// CHECK: engine = "xla"
// CHECK: %[[INVERSE:.*]] = "gflow.aten"(%[[FIRST]])
// CHECK-SAME: gflow.stays = "a call into PyTorch; the op stays with gflow"
// CHECK: %[[LAST:.*]]:2 = "gflow.engine"(
// CHECK-DAG: "gflow.exp"
// CHECK-DAG: "gflow.neg"
// CHECK: return %[[LAST]]#
// SMALL-LABEL: func.func @between
// SMALL-NOT: gflow.engine
// SMALL: "gflow.tanh"(%arg0) {gflow.stays = "its region would save {{.*}} microseconds of kernels, less than 1e+09"}
func.func @between(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = "gflow.tanh"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "gflow.aten"(%0) {overload = "aten.inverse.default", args = "[[{\22t\22: 0}], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "gflow.exp"(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "gflow.neg"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2, %3 : tensor<4x4xf32>, tensor<4x4xf32>
}

// Calls written by hand may have any arguments: a scan of a number, or along a dimension that there is none of, has no
// decomposition.
// CHECK-LABEL: func.func @other_arguments
// CHECK-NOT: gflow.engine
// CHECK-COUNT-2: gflow.stays = "a call into PyTorch; the op stays with gflow"
func.func @other_arguments(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "gflow.aten"(%x) {overload = "aten.cumsum.default", args = "[[0, 0], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.aten"(%x) {overload = "aten.cumsum.default", args = "[[{\22t\22: 0}, 1], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// A check comes before the region: what it needs is computed for it alone.
// CHECK-LABEL: func.func @checked
// CHECK: gflow.stays = "only a check of values needs it"
// CHECK: "gflow.check"
// CHECK: "gflow.engine"
// SMALL-LABEL: func.func @checked
func.func @checked(%x: tensor<4xf32>, %i: tensor<i64>) -> tensor<i1> {
  %0 = "gflow.constant"() {value = dense<3> : tensor<i64>} : () -> tensor<i64>
  %1 = "gflow.compare"(%i, %0) {predicate = "gt"} : (tensor<i64>, tensor<i64>) -> tensor<i1>
  "gflow.check"(%1) {error = "IndexError", message = "beyond", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<i1>) -> ()
  %2 = "gflow.not"(%1) : (tensor<i1>) -> tensor<i1>
  return %2 : tensor<i1>
}

// A module that an engine runs: its forward and backward, and not its updates.
// MODULES-LABEL: func.func @between
// MODULES-NOT: gflow.engine"
// MODULES-LABEL: func.func @modules
// MODULES: %[[A:.*]] = "gflow.tanh"(%arg0)
// MODULES: %[[B:.*]] = "gflow.engine"(%[[A]])
// MODULES: "gflow.exp"
// MODULES: engine = "onnxruntime"
// MODULES: "gflow.neg"(%[[B]])
// MODULES: "gflow.sqrt"
// CHECK-LABEL: func.func @modules
// CHECK: engine = "xla"
// CHECK: engine = "onnxruntime"
// CHECK: engine = "xla"
func.func @modules(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {gflow.engines = ["onnxruntime:model.encoder"]} {
  %0 = "gflow.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("forward:model")
  %1 = "gflow.exp"(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("forward:model.encoder.0")
  %2 = "gflow.neg"(%1) : (tensor<4xf32>) -> tensor<4xf32> loc("forward:model.encoders")
  %3 = "gflow.sqrt"(%2) : (tensor<4xf32>) -> tensor<4xf32> loc("optimizer:model.encoder")
  return %2, %3 : tensor<4xf32>, tensor<4xf32>
}

// RUN: not %gflow-opt %s --run-reproducer 2>&1 | FileCheck %s
// RUN: not %gflow-opt %s --gflow-simplify --gflow-plan-memory='strategies=none-such' --mlir-pass-pipeline-crash-reproducer=%t 2>&1 | FileCheck %s --check-prefix=KEEP
// RUN: FileCheck %s --check-prefix=FILE --input-file=%t
// RUN: not %gflow-opt %t --run-reproducer 2>&1 | FileCheck %s

// CHECK: error: no strategy 'none-such'
// KEEP:  error: no strategy 'none-such'
// KEEP:  note: reproducer: [[NAME:.+]] (run gflow-opt --run-reproducer [[NAME]])
// FILE:  return %arg0
// FILE:  {-#
// FILE:  mlir_reproducer: {
// FILE-NEXT:   pipeline: "any(gflow-plan-memory{strategies=none-such})",
// FILE-NEXT:   disable_threading: true,
// FILE-NEXT:   verify_each: true
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 4>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

{-#
  external_resources: {
    mlir_reproducer: {
      pipeline: "builtin.module(func.func(gflow-plan-memory{strategies=none-such}))",
      disable_threading: true,
      verify_each: true
    }
  }
#-}

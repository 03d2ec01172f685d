// RUN: %gflow-opt %s --cse --canonicalize | FileCheck %s --check-prefix=FLAGS
// RUN: %gflow-opt --pass-pipeline='builtin.module(func.func(cse,canonicalize{max-iterations=3}))' < %s | FileCheck %s --check-prefix=FLAGS
// RUN: %gflow-opt - --gflow-simplify --cse --mlir-print-ir-after-all -o %t < %s 2>&1 | FileCheck %s --check-prefix=DUMP
// RUN: FileCheck %s --check-prefix=FLAGS --input-file=%t
// RUN: %gflow-opt %s --mlir-print-op-generic --mlir-print-debuginfo | FileCheck %s --check-prefix=GENERIC

// FLAGS:      func.func @twice(%arg0: tensor<4xf32>)
// FLAGS-NEXT:   %[[A:.+]] = "gflow.exp"(%arg0)
// FLAGS-NEXT:   %[[B:.+]] = "gflow.mul"(%[[A]], %[[A]])
// FLAGS-NEXT:   return %[[B]]

// DUMP: // -----// IR Dump After gflow-simplify //----- //
// DUMP: func.func @twice
// DUMP: // -----// IR Dump After cse //----- //
// DUMP: func.func @twice

// GENERIC: "func.func"() <{function_type = (tensor<4xf32>) -> tensor<4xf32>, sym_name = "twice"}>
// GENERIC: "gflow.exp"({{.*}}loc(#[[LOC:.+]])
// GENERIC: #[[LOC]] = loc("{{.*}}basics.mlir":{{[0-9]+}}:{{[0-9]+}})
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.abs"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "gflow.mul"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}

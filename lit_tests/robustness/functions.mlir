// RUN: %gflow-opt %s --pipeline-for=cpu --emit=llvm-dialect | FileCheck %s
// RUN: %gflow-opt %s --pipeline-for=cpu --emit=llvm | FileCheck %s --check-prefix=LLVM

// Functions that call other ones of libm make one module.
// CHECK-DAG: llvm.func @exp
// CHECK-DAG: llvm.func @sin
// LLVM-DAG: declare double @exp
// LLVM-DAG: declare double @sin
func.func @one(%x: tensor<4xf64>) -> tensor<4xf64> {
  %0 = "gflow.exp"(%x) : (tensor<4xf64>) -> tensor<4xf64>
  return %0 : tensor<4xf64>
}
func.func @other(%x: tensor<4xf64>) -> tensor<4xf64> {
  %0 = "gflow.sin"(%x) : (tensor<4xf64>) -> tensor<4xf64>
  return %0 : tensor<4xf64>
}

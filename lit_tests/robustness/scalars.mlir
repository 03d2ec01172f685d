// RUN: %gflow-opt %s --pipeline-for=cuda --emit=triton | FileCheck %s

// A scalar has one element along no dimension, and PyTorch calls that dimension 0.

// CHECK: def gather
func.func @gather(%x: tensor<f32>, %i: tensor<i64>) -> tensor<f32> {
  %0 = "gflow.gather"(%x, %i) {dim = 0 : i64} : (tensor<f32>, tensor<i64>) -> tensor<f32>
  return %0 : tensor<f32>
}

// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Updates of five tensors of different sizes are one launch; a program finds its tensor by its number.

// CHECK:     @step for cuda:90: 1 steps, 1 kernels
// CHECK:     def one(program,
// CHECK:     def whole(program,
// CHECK:     def merged_pointwise_sub_{{[0-9a-f]+}}(
// CHECK:       program = tl.program_id(0)
// CHECK:       if program < begin_2:
// CHECK:         if program < begin_1:
// CHECK:       program -= begin
// CHECK:         whole(program,
// CHECK:         one(program,
func.func @step(%w0: tensor<100xf32>, %g0: tensor<100xf32>, %w1: tensor<101xf32>, %g1: tensor<101xf32>, %w2: tensor<102xf32>, %g2: tensor<102xf32>, %w3: tensor<103xf32>, %g3: tensor<103xf32>, %w4: tensor<104xf32>, %g4: tensor<104xf32>)
    -> (tensor<100xf32> {gflow.alias = 0 : i64}, tensor<101xf32> {gflow.alias = 2 : i64}, tensor<102xf32> {gflow.alias = 4 : i64}, tensor<103xf32> {gflow.alias = 6 : i64}, tensor<104xf32> {gflow.alias = 8 : i64}) {
  %u0 = "gflow.sub"(%w0, %g0) : (tensor<100xf32>, tensor<100xf32>) -> tensor<100xf32>
  %u1 = "gflow.sub"(%w1, %g1) : (tensor<101xf32>, tensor<101xf32>) -> tensor<101xf32>
  %u2 = "gflow.sub"(%w2, %g2) : (tensor<102xf32>, tensor<102xf32>) -> tensor<102xf32>
  %u3 = "gflow.sub"(%w3, %g3) : (tensor<103xf32>, tensor<103xf32>) -> tensor<103xf32>
  %u4 = "gflow.sub"(%w4, %g4) : (tensor<104xf32>, tensor<104xf32>) -> tensor<104xf32>
  return %u0, %u1, %u2, %u3, %u4 : tensor<100xf32>, tensor<101xf32>, tensor<102xf32>, tensor<103xf32>, tensor<104xf32>
}

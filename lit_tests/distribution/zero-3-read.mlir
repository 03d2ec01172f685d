// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-zero-3{min-size=8}))' --verify-each | FileCheck %s

// What is read alone is a piece where ranks have copies of it; small ones stay whole. What is read in fewer bytes is
// gathered in these.
// CHECK:       func.func @evaluate(%arg0: tensor<8xf32> {gflow.copies = ["dp"], gflow.name = "w", gflow.role = "parameter", gflow.sharding = ["S(0)"], gflow.whole = array<i64: 4, 4>}, %arg1: tensor<8xf32> {{.*}}, %arg2: tensor<2x2xf32> {{.*}}, %arg3: tensor<4x4xf32>
// CHECK:         %[[W:.*]]:2 = "gflow.collective"(%arg0) {{.*}}gflow.gradient = "w"{{.*}}kind = "all_gather"{{.*}} : (tensor<8xf32>)
// CHECK:         "gflow.matmul"
// CHECK:         %[[H:.*]] = "gflow.convert"(%arg1) {{.*}} -> tensor<8xbf16>
// CHECK:         "gflow.collective"(%[[H]], %[[W]]#1) {{.*}}gflow.gradient = "v"{{.*}}kind = "all_gather"{{.*}} -> (tensor<16xbf16>
// CHECK:         "gflow.matmul"({{.*}}xbf16>
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @evaluate(%w: tensor<4x4xf32> {gflow.copies = ["dp"], gflow.name = "w", gflow.role = "parameter"},
                    %v: tensor<4x4xf32> {gflow.copies = ["dp"], gflow.name = "v", gflow.role = "parameter"},
                    %small: tensor<2x2xf32> {gflow.copies = ["dp"], gflow.name = "s", gflow.role = "parameter"},
                    %x: tensor<4x4xf32> {gflow.name = "x", gflow.role = "input"})
    -> (tensor<4x4xbf16>, tensor<2x2xf32>) {
  %y = "gflow.matmul"(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %h = "gflow.convert"(%v) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %b = "gflow.convert"(%y) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %z = "gflow.matmul"(%b, %h) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %n = "gflow.neg"(%small) : (tensor<2x2xf32>) -> tensor<2x2xf32>
  return %z, %n : tensor<4x4xbf16>, tensor<2x2xf32>
}
}

// RUN: %gflow-opt %s --gflow-checkpoint | FileCheck %s

// The backward gets a copy of %a that hangs on the scope's input and on the gradient that arrives.
// CHECK-LABEL: func.func @one_scope(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp"(%arg0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.matmul"(%[[v0]], %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.neg"(%[[v1]]) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.sigmoid"(%[[v1]]) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%[[v3]], %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v5:.+]]:2 = "gflow.optimization_barrier"(%arg0, %[[v4]]) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK-NEXT:   %[[v6:.+]] = "gflow.exp"(%[[v5]]#0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.mul"(%[[v4]], %[[v6]]) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   return %[[v2]], %[[v7]] : tensor<4x4xf32>, tensor<4x4xf32>
func.func @one_scope(%x: tensor<4x4xf32>, %w: tensor<4x4xf32> {gflow.role = "parameter"}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %a = "gflow.exp"(%x) {gflow.scope = ["block#0"]} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = "gflow.matmul"(%a, %w) {gflow.scope = ["block#0"]} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = "gflow.neg"(%y) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %dy = "gflow.sigmoid"(%y) {gflow.phase = "backward"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %d = "gflow.matmul"(%dy, %w) {gflow.phase = "backward"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = "gflow.mul"(%d, %a) {gflow.phase = "backward"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %l, %g : tensor<4x4xf32>, tensor<4x4xf32>
}

// A dropout mask is drawn again, from the same state and stream.
// CHECK-LABEL: func.func @mask(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.random"(%arg3) {dtype = "f32", kind = "uniform", shape = array<i64: 8>, stream = 7 : i64} : (tensor<2xi64>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.compare"(%[[v0]], %arg2) {predicate = "lt"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convert"(%[[v1]]) {dtype = "f32"} : (tensor<8xi1>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.mul"(%arg0, %[[v2]]) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.tanh"(%arg1) : (tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v5:.+]]:3 = "gflow.optimization_barrier"(%arg3, %arg2, %[[v4]]) {operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2xi64>, tensor<8xf32>, tensor<8xf32>) -> (tensor<2xi64>, tensor<8xf32>, tensor<8xf32>)
// CHECK-NEXT:   %[[v6:.+]] = "gflow.random"(%[[v5]]#0) {dtype = "f32", kind = "uniform", shape = array<i64: 8>, stream = 7 : i64} : (tensor<2xi64>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.compare"(%[[v6]], %[[v5]]#1) {predicate = "lt"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.convert"(%[[v7]]) {dtype = "f32"} : (tensor<8xi1>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.mul"(%[[v4]], %[[v8]]) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   return %[[v3]], %[[v9]] : tensor<8xf32>, tensor<8xf32>
func.func @mask(%x: tensor<8xf32>, %dy: tensor<8xf32>, %p: tensor<8xf32>, %rng: tensor<2xi64> {gflow.role = "rng"}) -> (tensor<8xf32>, tensor<8xf32>) {
  %u = "gflow.random"(%rng) {kind = "uniform", stream = 7 : i64, shape = array<i64: 8>, dtype = "f32", gflow.scope = ["drop#0"]} : (tensor<2xi64>) -> tensor<8xf32>
  %m = "gflow.compare"(%u, %p) {predicate = "lt", gflow.scope = ["drop#0"]} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  %f = "gflow.convert"(%m) {dtype = "f32", gflow.scope = ["drop#0"]} : (tensor<8xi1>) -> tensor<8xf32>
  %y = "gflow.mul"(%x, %f) {gflow.scope = ["drop#0"]} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %t = "gflow.tanh"(%dy) {gflow.phase = "backward"} : (tensor<8xf32>) -> tensor<8xf32>
  %g = "gflow.mul"(%t, %f) {gflow.phase = "backward"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %y, %g : tensor<8xf32>, tensor<8xf32>
}

// What PyTorch draws is kept, and is an input of what is computed again.
// CHECK-LABEL: func.func @drawn_by_pytorch(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.aten"(%arg0) {args = "{{\[\[}}{\22t\22: 0}], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, overload = "aten.poisson.default", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, unique = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.exp"(%[[v0]]) : (tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg0, %[[v1]]) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v3:.+]]:2 = "gflow.optimization_barrier"(%[[v0]], %[[v2]]) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
// CHECK-NEXT:   %[[v4:.+]] = "gflow.exp"(%[[v3]]#0) : (tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.mul"(%arg1, %[[v4]]) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   return %[[v2]], %[[v5]] : tensor<8xf32>, tensor<8xf32>
func.func @drawn_by_pytorch(%x: tensor<8xf32>, %dy: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %u = "gflow.aten"(%x) {overload = "aten.poisson.default", args = "[[{\"t\": 0}], {}]", unique = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, gflow.scope = ["p#0"]} : (tensor<8xf32>) -> tensor<8xf32>
  %e = "gflow.exp"(%u) {gflow.scope = ["p#0"]} : (tensor<8xf32>) -> tensor<8xf32>
  %y = "gflow.mul"(%x, %e) {gflow.scope = ["p#0"]} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %g = "gflow.mul"(%dy, %e) {gflow.phase = "backward"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %y, %g : tensor<8xf32>, tensor<8xf32>
}

// A scope in a scope: its copy is a scope of the outer one's second run.
// CHECK-LABEL: func.func @nested(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.tanh"(%[[v0]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.sqrt"(%[[v1]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.neg"(%[[v2]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.sigmoid"(%arg1) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v5:.+]]:2 = "gflow.optimization_barrier"(%arg0, %[[v4]]) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
// CHECK-NEXT:   %[[v6:.+]] = "gflow.exp"(%[[v5]]#0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.tanh"(%[[v6]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.sqrt"(%[[v7]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v9:.+]]:2 = "gflow.optimization_barrier"(%[[v6]], %[[v4]]) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
// CHECK-NEXT:   %[[v10:.+]] = "gflow.tanh"(%[[v9]]#0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.sqrt"(%[[v10]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v12:.+]] = "gflow.mul"(%[[v4]], %[[v11]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v13:.+]] = "gflow.mul"(%[[v12]], %[[v10]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v14:.+]] = "gflow.mul"(%[[v13]], %[[v9]]#0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v3]], %[[v14]] : tensor<4xf32>, tensor<4xf32>
func.func @nested(%x: tensor<4xf32>, %dy: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = "gflow.exp"(%x) {gflow.scope = ["outer#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %b = "gflow.tanh"(%a) {gflow.scope = ["outer#0", "inner#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %c = "gflow.sqrt"(%b) {gflow.scope = ["outer#0", "inner#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %y = "gflow.neg"(%c) {gflow.scope = ["outer#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %t = "gflow.sigmoid"(%dy) {gflow.phase = "backward"} : (tensor<4xf32>) -> tensor<4xf32>
  %g0 = "gflow.mul"(%t, %c) {gflow.phase = "backward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g1 = "gflow.mul"(%g0, %b) {gflow.phase = "backward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g2 = "gflow.mul"(%g1, %a) {gflow.phase = "backward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y, %g2 : tensor<4xf32>, tensor<4xf32>
}

// Nothing in the backward reads what the scope makes, or its values are results: no copies.
// CHECK-LABEL: func.func @nothing_to_do(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.mul"(%arg1, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]], %[[v1]] : tensor<4xf32>, tensor<4xf32>
func.func @nothing_to_do(%x: tensor<4xf32>, %dy: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = "gflow.exp"(%x) {gflow.scope = ["block#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %g = "gflow.mul"(%dy, %a) {gflow.phase = "backward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %a, %g : tensor<4xf32>, tensor<4xf32>
}

// What depends on parameters alone is not computed again.
// CHECK-LABEL: func.func @parameters_only(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.neg"(%[[v0]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg1, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v1]], %[[v2]] : tensor<4xf32>, tensor<4xf32>
func.func @parameters_only(%w: tensor<4xf32> {gflow.role = "parameter"}, %dy: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = "gflow.exp"(%w) {gflow.scope = ["block#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %y = "gflow.neg"(%a) {gflow.scope = ["block#0"]} : (tensor<4xf32>) -> tensor<4xf32>
  %g = "gflow.mul"(%dy, %a) {gflow.phase = "backward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y, %g : tensor<4xf32>, tensor<4xf32>
}

// A backward alone: the gradient that arrives first is an argument, and nothing reads the first run of the scope.
// CHECK-LABEL: func.func @backward_alone(
// CHECK:        %[[b:.+]]:2 = "gflow.optimization_barrier"(%arg0, %arg1)
// CHECK-NEXT:   %[[e:.+]] = "gflow.exp"(%[[b]]#0) : (tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[g:.+]] = "gflow.mul"(%arg1, %[[e]]) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   return %[[g]] : tensor<8xf32>
func.func @backward_alone(%x: tensor<8xf32>, %dy: tensor<8xf32>) -> tensor<8xf32> {
  %e = "gflow.exp"(%x) {gflow.scope = ["block#0"]} : (tensor<8xf32>) -> tensor<8xf32>
  %g = "gflow.mul"(%dy, %e) {gflow.phase = "backward"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %g : tensor<8xf32>
}

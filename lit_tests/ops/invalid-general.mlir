// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.add' op expects 2 operands (a, b), found 1}}
  %0 = "gflow.add"(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.add' op expects 1 results, found 2}}
  %0:2 = "gflow.add"(%a0, %a1) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return
}

// -----

func.func @f(%a0: tensor<?xf32>) {
  // expected-error @+1 {{'gflow.abs' op operand #0 must be a tensor of static shape, found tensor<?xf32>}}
  %0 = "gflow.abs"(%a0) : (tensor<?xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<*xf32>) {
  // expected-error @+1 {{'gflow.abs' op operand #0 must be a tensor of static shape, found tensor<*xf32>}}
  %0 = "gflow.abs"(%a0) : (tensor<*xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: f32) {
  // expected-error @+1 {{'gflow.abs' op operand #0 must be a tensor of static shape, found f32}}
  %0 = "gflow.abs"(%a0) : (f32) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.abs' op result #0 must be tensor<4xf32>, found tensor<5xf32>}}
  %0 = "gflow.abs"(%a0) : (tensor<4xf32>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.abs' op result #0 must be tensor<4xf32>, found tensor<4xf64>}}
  %0 = "gflow.abs"(%a0) : (tensor<4xf32>) -> tensor<4xf64>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.reshape' op requires attribute 'shape'}}
  %0 = "gflow.reshape"(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.reshape' op attribute 'shape' must be array<i64: ...>, found 3 : i64}}
  %0 = "gflow.reshape"(%a0) {shape = 3 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<4xf32>) {
  // expected-error @+1 {{'gflow.compare' op attribute 'predicate' must be one of eq, ne, lt, le, gt, ge, found "less"}}
  %0 = "gflow.compare"(%a0, %a1) {predicate = "less"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{unregistered operation 'gflow.nothing'}}
  "gflow.nothing"() : () -> ()
  return
}

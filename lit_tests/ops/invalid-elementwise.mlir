// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f(%a0: tensor<4xf32>, %a1: tensor<4xf64>) {
  // expected-error @+1 {{operands must have one type: operand #0 is tensor<4xf32>, operand #1 is tensor<4xf64>; insert gflow.broadcast or gflow.convert}}
  %0 = "gflow.add"(%a0, %a1) : (tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<1xf32>) {
  // expected-error @+1 {{operands must have one type: operand #0 is tensor<4xf32>, operand #1 is tensor<1xf32>}}
  %0 = "gflow.maximum"(%a0, %a1) : (tensor<4xf32>, tensor<1xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xi1>, %a1: tensor<4xi1>) {
  // expected-error @+1 {{element type i1 is not one of}}
  %0 = "gflow.add"(%a0, %a1) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
  return
}

// -----

func.func @f(%a0: tensor<4xi32>) {
  // expected-error @+1 {{element type i32 is not one of f64, f32, f16, bf16}}
  %0 = "gflow.exp"(%a0) : (tensor<4xi32>) -> tensor<4xi32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>, %a1: tensor<4xf32>) {
  // expected-error @+1 {{element type f32 is not one of}}
  %0 = "gflow.and"(%a0, %a1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xi32>, %a1: tensor<4xf32>, %a2: tensor<4xf32>) {
  // expected-error @+1 {{the predicate must have element type i1, found i32}}
  %0 = "gflow.select"(%a0, %a1, %a2) : (tensor<4xi32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xi1>, %a1: tensor<4xf32>, %a2: tensor<4xf64>) {
  // expected-error @+1 {{operands must agree in shape, and the last two in type}}
  %0 = "gflow.select"(%a0, %a1, %a2) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<3xi1>, %a1: tensor<4xf32>, %a2: tensor<4xf32>) {
  // expected-error @+1 {{operands must agree in shape, and the last two in type}}
  %0 = "gflow.select"(%a0, %a1, %a2) : (tensor<3xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{cannot convert to element type f8E5M2}}
  %0 = "gflow.convert"(%a0) {dtype = "f8E5M2"} : (tensor<4xf32>) -> tensor<4xf8E5M2>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{result #0 must be tensor<4xbf16>, found tensor<4xf16>}}
  %0 = "gflow.convert"(%a0) {dtype = "bf16"} : (tensor<4xf32>) -> tensor<4xf16>
  return
}

func.func @none(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{nothing like it}}
  return %a : tensor<4xf32>
}
// -----
func.func @other(%a: tensor<4xf32>) -> tensor<5xf32> {

  return %a : tensor<4xf32>

}
// -----
func.func @kind(%a: tensor<4xf32>) -> tensor<5xf32> {

  // expected-warning @below {{type of return operand 0}}
  return %a : tensor<4xf32>
}

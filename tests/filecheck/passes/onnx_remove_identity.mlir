// RUN: cnncc opt %s -p onnx-remove-identity --split-input-file | filecheck %s

// The usual case, twice in a row, with the output of the graph at the end.
// CHECK: func.func @main(%x: tensor<3xf32>)
// CHECK-NEXT: %[[Y:.*]] = onnx.node "Relu"(%x)
// CHECK-NEXT: func.return %[[Y]]
builtin.module attributes {onnx.opset_imports = {ai.onnx = 11 : i64}} {
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = onnx.node "Identity"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %1 = onnx.node "Relu"(%0) : (tensor<3xf32>) -> tensor<3xf32>
  %2, %mask = onnx.node "Dropout"(%1) : (tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi1>)
  func.return %2 : tensor<3xf32>
}
}

// -----

// The mask has no other op to come from; another domain's Identity may be anything.
// CHECK: onnx.node "Dropout"
// CHECK: onnx.node "Identity" domain "my.ops"
builtin.module attributes {onnx.opset_imports = {ai.onnx = 11 : i64}} {
func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi1>) {
  %0, %mask = onnx.node "Dropout"(%x) : (tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi1>)
  %1 = onnx.node "Identity" domain "my.ops"(%0) : (tensor<3xf32>) -> tensor<3xf32>
  func.return %1, %mask : tensor<3xf32>, tensor<3xi1>
}
}

// -----

// From opset 12 on the third input says whether it trains: false goes; true, and what is not known, stays.
// CHECK: %[[T:.*]] = onnx.node "Dropout"(%x, %none, %true)
// CHECK-NEXT: onnx.node "Dropout"(%[[T]], %none, %p)
// CHECK-NEXT: func.return
builtin.module attributes {onnx.opset_imports = {ai.onnx = 13 : i64}} {
func.func @main(%x: tensor<3xf32>, %p: tensor<i1>) -> tensor<3xf32> {
  %none = onnx.absent
  %true = weights.constant : tensor<i1> = dense<true> : tensor<i1>
  %false = weights.constant : tensor<i1> = dense<false> : tensor<i1>
  %0 = onnx.node "Dropout"(%x, %none, %false) : (tensor<3xf32>, none, tensor<i1>) -> tensor<3xf32>
  %1 = onnx.node "Dropout"(%0, %none, %true) : (tensor<3xf32>, none, tensor<i1>) -> tensor<3xf32>
  %2 = onnx.node "Dropout"(%1, %none, %p) : (tensor<3xf32>, none, tensor<i1>) -> tensor<3xf32>
  func.return %2 : tensor<3xf32>
}
}

// -----

// Opset 6 trains unless is_test says otherwise.
// CHECK: %[[D:.*]] = onnx.node "Dropout"(%x) : 
// CHECK-NEXT: func.return %[[D]]
builtin.module attributes {onnx.opset_imports = {ai.onnx = 6 : i64}} {
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = onnx.node "Dropout"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %1 = onnx.node "Dropout"(%0) {is_test = 1 : i64} : (tensor<3xf32>) -> tensor<3xf32>
  func.return %1 : tensor<3xf32>
}
}

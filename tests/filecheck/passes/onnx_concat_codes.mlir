// RUN: cnncc opt %s -p onnx-concat-codes | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 13 : i64, com.microsoft = 1 : i64}} {
func.func @main(%x: tensor<1x2x3x3xf32>, %y: tensor<1x4x3x3xf32>, %a: tensor<1x2x3x3xi8>, %s: tensor<f32>, %t: tensor<f32>, %z: tensor<i8>) -> (tensor<1x6x3x3xi8>, tensor<1x6x3x3xi8>, tensor<1x6x3x3xi8>, tensor<1x4x3x3xi8>) {
  // What is quantised next is quantised before.
  // CHECK: %[[X:.*]] = onnx.node "QuantizeLinear" name "cat.quantizelinear"(%x, %s, %z) : {{.*}} -> tensor<1x2x3x3xi8>
  // CHECK-NEXT: %[[Y:.*]] = onnx.node "QuantizeLinear" name "cat.quantizelinear.2"(%y, %s, %z) : {{.*}} -> tensor<1x4x3x3xi8>
  // CHECK-NEXT: %[[C:.*]] = onnx.node "Concat" name "cat"(%[[X]], %[[Y]]) {axis = 1 : i64} : (tensor<1x2x3x3xi8>, tensor<1x4x3x3xi8>) -> tensor<1x6x3x3xi8>
  %0 = onnx.node "Concat" name "cat"(%x, %y) {axis = 1 : i64} : (tensor<1x2x3x3xf32>, tensor<1x4x3x3xf32>) -> tensor<1x6x3x3xf32>
  %1 = onnx.node "QuantizeLinear" name "q"(%0, %s, %z) : (tensor<1x6x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x6x3x3xi8>

  // A concatenation that two read stays.
  // CHECK-NEXT: %[[D:.*]] = onnx.node "Concat"(%x, %y) {axis = 1 : i64}
  // CHECK-NEXT: %[[E:.*]] = onnx.node "QuantizeLinear"(%[[D]], %s, %z)
  // CHECK-NEXT: %[[F:.*]] = onnx.node "QuantizeLinear"(%[[D]], %t, %z)
  %2 = onnx.node "Concat"(%x, %y) {axis = 1 : i64} : (tensor<1x2x3x3xf32>, tensor<1x4x3x3xf32>) -> tensor<1x6x3x3xf32>
  %3 = onnx.node "QuantizeLinear"(%2, %s, %z) : (tensor<1x6x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x6x3x3xi8>
  %4 = onnx.node "QuantizeLinear"(%2, %t, %z) : (tensor<1x6x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x6x3x3xi8>

  // The codes of a QLinearConcat are dequantised by their own scales, and quantised by that of the result.
  // CHECK-NEXT: %[[G:.*]] = onnx.node "DequantizeLinear"(%a, %t, %z) : {{.*}} -> tensor<1x2x3x3xf32>
  // CHECK-NEXT: %[[H:.*]] = onnx.node "DequantizeLinear"(%a, %s, %z) : {{.*}} -> tensor<1x2x3x3xf32>
  // CHECK-NEXT: %[[I:.*]] = onnx.node "QuantizeLinear"(%[[G]], %s, %z) : {{.*}} -> tensor<1x2x3x3xi8>
  // CHECK-NEXT: %[[J:.*]] = onnx.node "QuantizeLinear"(%[[H]], %s, %z) : {{.*}} -> tensor<1x2x3x3xi8>
  // CHECK-NEXT: %[[K:.*]] = onnx.node "Concat"(%[[I]], %[[J]]) {axis = 1 : i64}
  // CHECK-NEXT: func.return %[[C]], %[[E]], %[[F]], %[[K]]
  %5 = onnx.node "QLinearConcat" domain "com.microsoft"(%s, %z, %a, %t, %z, %a, %s, %z) {axis = 1 : i64} : (tensor<f32>, tensor<i8>, tensor<1x2x3x3xi8>, tensor<f32>, tensor<i8>, tensor<1x2x3x3xi8>, tensor<f32>, tensor<i8>) -> tensor<1x4x3x3xi8>
  func.return %1, %3, %4, %5 : tensor<1x6x3x3xi8>, tensor<1x6x3x3xi8>, tensor<1x6x3x3xi8>, tensor<1x4x3x3xi8>
}
}

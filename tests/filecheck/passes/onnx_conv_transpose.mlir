// RUN: cnncc opt %s -p onnx-conv-transpose | filecheck %s

// Values are tested in test_conv_transpose.py. Here: shapes, names, and what stays.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<1x8x5x7xf32>, %r: tensor<8x3x2x2xf32>) -> (tensor<1x3x10x14xf32>, tensor<1x3x9x13xf32>, tensor<1x3x10x14xf32>) {
  %w = weights.constant : tensor<8x3x2x2xf32> = dense<0.5> : tensor<8x3x2x2xf32>
  %v = weights.constant : tensor<8x3x3x3xf32> = dense<0.5> : tensor<8x3x3x3xf32>

  // Each of the four pixels uses one tap, and has a convolution with the activation after it.
  // CHECK: %[[A:.*]] = onnx.node "Conv" name "up"(%x, %{{.*}}, %{{.*}}) {pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, group = 1 : i64} : (tensor<1x8x5x7xf32>, tensor<3x8x1x1xf32>, tensor<3xf32>) -> tensor<1x3x5x7xf32>
  // CHECK-NEXT: %[[B:.*]] = onnx.node "Relu" name "relu"(%[[A]]) : (tensor<1x3x5x7xf32>) -> tensor<1x3x5x7xf32>
  // CHECK: onnx.node "Conv" name "up.2"
  // CHECK-NEXT: %[[C:.*]] = onnx.node "Relu" name "relu.2"
  // CHECK: onnx.node "Conv" name "up.3"
  // CHECK-NEXT: %[[D:.*]] = onnx.node "Relu" name "relu.3"
  // CHECK: onnx.node "Conv" name "up.4"
  // CHECK-NEXT: %[[I:.*]] = onnx.node "Relu" name "relu.4"
  // CHECK-NEXT: %[[J:.*]] = onnx.node "Concat" name "up.concat"(%[[B]], %[[C]], %[[D]], %[[I]]) {axis = 1 : i64} : {{.*}} -> tensor<1x12x5x7xf32>
  // CHECK-NEXT: %[[E:.*]] = onnx.node "DepthToSpace" name "up.depthtospace"(%[[J]]) {blocksize = 2 : i64} : (tensor<1x12x5x7xf32>) -> tensor<1x3x10x14xf32>
  %0 = onnx.node "ConvTranspose" name "up"(%x, %w) {strides = array<i64: 2, 2>} : (tensor<1x8x5x7xf32>, tensor<8x3x2x2xf32>) -> tensor<1x3x10x14xf32>
  %1 = onnx.node "Relu" name "relu"(%0) : (tensor<1x3x10x14xf32>) -> tensor<1x3x10x14xf32>

  // Pixels of even rows use two rows of taps, those of odd ones one; columns likewise. 9 rows and 13 columns
  // are cut out of 10 and 14.
  // CHECK: onnx.node "Conv" name "three"(%x, %{{.*}}, %{{.*}}) {pads = array<i64: 1, 1, 0, 0>, {{.*}} : (tensor<1x8x5x7xf32>, tensor<3x8x2x2xf32>, tensor<3xf32>) -> tensor<1x3x5x7xf32>
  // CHECK: onnx.node "Conv" name "three.2"(%x, {{.*}} {pads = array<i64: 1, 0, 0, 0>, {{.*}} tensor<3x8x2x1xf32>
  // CHECK: onnx.node "Conv" name "three.3"(%x, {{.*}} {pads = array<i64: 0, 1, 0, 0>, {{.*}} tensor<3x8x1x2xf32>
  // CHECK: onnx.node "Conv" name "three.4"(%x, {{.*}} {pads = array<i64: 0, 0, 0, 0>, {{.*}} tensor<3x8x1x1xf32>
  // CHECK-NEXT: onnx.node "Concat"
  // CHECK: onnx.node "Gather"
  // CHECK: onnx.node "Reshape"
  // CHECK: onnx.node "Transpose"
  // CHECK: %[[F:.*]] = onnx.node "Reshape"
  // CHECK: %[[G:.*]] = onnx.node "Slice" name "three.slice"(%[[F]], %{{.*}}, %{{.*}}, %{{.*}}) : (tensor<1x3x10x14xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<1x3x9x13xf32>
  %2 = onnx.node "ConvTranspose" name "three"(%x, %v) {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>} : (tensor<1x8x5x7xf32>, tensor<8x3x3x3xf32>) -> tensor<1x3x9x13xf32>

  // Computed weights.
  // CHECK-NEXT: %[[H:.*]] = onnx.node "ConvTranspose"(%x, %r)
  // CHECK-NEXT: func.return %[[E]], %[[G]], %[[H]]
  %3 = onnx.node "ConvTranspose"(%x, %r) {strides = array<i64: 2, 2>} : (tensor<1x8x5x7xf32>, tensor<8x3x2x2xf32>) -> tensor<1x3x10x14xf32>
  func.return %1, %2, %3 : tensor<1x3x10x14xf32>, tensor<1x3x9x13xf32>, tensor<1x3x10x14xf32>
}
}

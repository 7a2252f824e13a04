// RUN: cnncc opt %s -p onnx-dead-code | filecheck %s

// CHECK: func.func @main
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  // A chain of which only the last has no use goes as a whole, with its constant and the absent value.
  // CHECK-NOT: onnx.absent
  %none = onnx.absent
  // CHECK-NOT: dense<1.0
  %c = weights.constant : tensor<3xf32> = dense<1.0> : tensor<3xf32>
  // CHECK-NOT: Add
  %0 = onnx.node "Add"(%x, %c) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  // CHECK-NOT: Clip
  %1 = onnx.node "Clip"(%0, %none) : (tensor<3xf32>, none) -> tensor<3xf32>
  // One used result of two keeps the node and what it uses.
  // CHECK: %d = weights.constant
  %d = weights.constant : tensor<f32> = dense<2.0> : tensor<f32>
  // CHECK-NEXT: onnx.node "Dropout"(%x, %d)
  %2, %mask = onnx.node "Dropout"(%x, %d) : (tensor<3xf32>, tensor<f32>) -> (tensor<3xf32>, tensor<3xi1>)
  // CHECK-NEXT: func.return
  func.return %2 : tensor<3xf32>
}

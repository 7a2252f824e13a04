// RUN: cnncc opt %s -p cnn-legalize | filecheck %s

// A clamp and a requantisation that no epilogue could take become poolings over one pixel, under the same name.
// CHECK: %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [0, 9]> label "relu" : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi16>
// CHECK-NEXT: %[[B:.*]] = cnn.pool "max" %[[A]] window <kernel = [1, 1]> then <scale = "q", zero = 1, clamp = [-7, 7]> : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi8>
// Sums of 32 bits are no operands of a pooling.
// CHECK-NEXT: %[[C:.*]] = cnn.clamp %y by <clamp = [0, 9]>
// CHECK-NEXT: func.return %[[B]], %[[C]]
func.func @main(%x: tensor<2x3x7x5xi16>, %y: tensor<2x3x7x5xi32>) -> (tensor<2x3x7x5xi8>, tensor<2x3x7x5xi32>) {
  %0 = cnn.clamp %x by <clamp = [0, 9]> label "relu" : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi16>
  %1 = cnn.requant %0 by <scale = "q", zero = 1, clamp = [-7, 7]> : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi8>
  %2 = cnn.clamp %y by <clamp = [0, 9]> : tensor<2x3x7x5xi32> -> tensor<2x3x7x5xi32>
  func.return %1, %2 : tensor<2x3x7x5xi8>, tensor<2x3x7x5xi32>
}

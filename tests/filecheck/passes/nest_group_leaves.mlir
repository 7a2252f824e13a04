// A result of the network has all rows: a layer in the middle of a group has none of them for long.

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=1}' 2>&1 | filecheck %s
// CHECK: the result of layer 'a' is read by func.return, which is no layer, too: a ring has its last rows alone; end the group at this layer, or begin it after it
func.func @main(%x: tensor<1x2x9x4xi16>) -> (tensor<1x2x9x4xi32>, tensor<1x2x9x4xi32>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 1>
       window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" : tensor<1x2x9x4xi16> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
  }
  %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 1>
       window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "b" : tensor<1x2x9x4xi32> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
  }
  func.return %0, %1 : tensor<1x2x9x4xi32>, tensor<1x2x9x4xi32>
}

// A layer of a group has readers in the group alone: a ring has the last rows of its result.

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=1}' 2>&1 | filecheck %s
// CHECK: the result of layer 'a' is read by layer 'sum', too: a ring has its last rows alone; end the group at this layer, or begin it after it

// RUN: not cnncc opt %s -p 'nest-group{layers="a,sum" rows=1}' 2>&1 | filecheck %s --check-prefix BETWEEN
// BETWEEN: layer 'b' stands between the group's layers 'a' and 'sum': name it, too

// RUN: cnncc opt %s -p 'nest-group{layers="b,sum" rows=1}' | filecheck %s --check-prefix AFTER
// AFTER: nest.group "b..sum"
func.func @main(%x: tensor<1x2x9x4xi16>) -> tensor<1x2x9x4xi32> {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 1>
       window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" : tensor<1x2x9x4xi16> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
  }
  %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 1>
       window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "b" : tensor<1x2x9x4xi32> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
  }
  %2 = nest.layer "copy" %1 residual %0 : tensor<1x2x9x4xi32> sizes <n = 1, k = 2, c = 1, h = 9, w = 4, r = 1, s = 1>
       window <kernel = [1, 1], group = 2> then <factors = "f"> label "sum" : tensor<1x2x9x4xi32> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return %2 : tensor<1x2x9x4xi32>
}

// Groups that `nest-assign-mapping` has chosen: the module lists them in `nest.groups`, and the list goes.

// RUN: cnncc opt %s -p nest-group | filecheck %s
// CHECK-NOT:  nest.groups
// The image comes row by row, for which a has a stage. It runs ahead of a, from which the delays count.
// CHECK:      nest.group "a..b"
// CHECK:      nest.load "a.ifmap" %x rows 2 delay 0 keeps 7
// CHECK:      label "a" delay 2 keeps 7
// CHECK:      label "b" delay 4 :
// With `rowwise` the first stripe of c has one row.
// CHECK:      nest.group "c..d"
// CHECK:      label "c" delay 0 keeps 4 first 1
// CHECK-NOT:  nest.load
// With `single` the result of f, which leaves, has one buffer.
// CHECK:      nest.group "e..f"
// CHECK-NOT:  nest.load
// CHECK:      label "f"
// CHECK:      nest.stage output in glb buffers 1

// RUN: cnncc opt %s -p 'nest-group{loads=false}' | filecheck %s --check-prefix BLOCKS
// BLOCKS-NOT: nest.load
// BLOCKS:     label "a" delay 0 keeps 7
// BLOCKS-NOT: nest.load

builtin.module attributes {nest.groups = [
    {layers = ["a", "b"], rows = 2 : i64, delays = [0 : i64, 2 : i64]}, {layers = ["c", "d"], rows = 2 : i64, rowwise = true},
    {layers = ["e", "f"], rows = 2 : i64, loads = false, single = true}]} {
  func.func @main(%x: tensor<1x2x9x4xi16>, %y: tensor<1x2x9x4xi16>) -> (tensor<1x3x9x4xi16>, tensor<1x3x9x4xi16>) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 3, c = 2, h = 9, w = 4, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "a" : tensor<1x2x9x4xi16> -> tensor<1x3x9x4xi16> {
      nest.for k { nest.for h { nest.for w {
        nest.stage ifmap in rf buffers 1
        nest.for c keep { nest.for r keep { nest.for s keep { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 3, h = 9, w = 4, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "b" : tensor<1x3x9x4xi16> -> tensor<1x3x9x4xi16> {
      nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
    }
    %2 = nest.layer "mac" %1 weights @v sizes <n = 1, k = 3, c = 3, h = 9, w = 4, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "c" : tensor<1x3x9x4xi16> -> tensor<1x3x9x4xi16> {
      nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
    }
    %3 = nest.layer "mac" %2 weights @v sizes <n = 1, k = 3, c = 3, h = 9, w = 4, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "d" : tensor<1x3x9x4xi16> -> tensor<1x3x9x4xi16> {
      nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
    }
    %4 = nest.layer "mac" %y weights @w sizes <n = 1, k = 3, c = 2, h = 9, w = 4, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "e" : tensor<1x2x9x4xi16> -> tensor<1x3x9x4xi16> {
      nest.for k { nest.for h { nest.for w {
        nest.stage ifmap in rf buffers 1
        nest.for c keep { nest.for r keep { nest.for s keep { nest.mac } } } } } }
    }
    %5 = nest.layer "mac" %4 weights @v sizes <n = 1, k = 3, c = 3, h = 9, w = 4, r = 3, s = 3>
         window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "f" : tensor<1x3x9x4xi16> -> tensor<1x3x9x4xi16> {
      nest.for k { nest.for h { nest.for w {
        nest.stage ifmap in rf buffers 1
        nest.for c keep { nest.for r keep { nest.for s keep { nest.mac } } } } } }
    }
    func.return %3, %5 : tensor<1x3x9x4xi16>, tensor<1x3x9x4xi16>
  }
}

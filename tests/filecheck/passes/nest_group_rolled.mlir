// Four strips of two columns. Those without a border are alike: they are the images of one group, two columns apart.

// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 columns=2}' | filecheck %s
// CHECK:      nest.group "a..b@0" : tensor<1x2x9x2xi32> {
// CHECK:      %[[#STRIPS:]] = nest.columns %x from 1 every 2 : tensor<1x2x9x8xi16> -> tensor<2x2x9x4xi16>
// CHECK-NEXT: %[[#MIDDLE:]] = nest.group "a..b@1-2" : tensor<2x2x9x2xi32> {
// CHECK-NEXT: nest.layer "mac" %[[#STRIPS]] weights @w sizes <n = 2, k = 2, c = 2, h = 9, w = 2, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 0, 1, 0]> then <> label "a@1-2" delay 0 keeps 2
// CHECK-NEXT: nest.for n {
// CHECK-NEXT: nest.for h step 2 {
// CHECK:      label "b@1-2" delay 0
// CHECK:      nest.group "a..b@3" : tensor<1x2x9x2xi32> {
// CHECK:      nest.join %{{.*}}, %[[#MIDDLE]], %{{.*}} label "b" : (tensor<1x2x9x2xi32>, tensor<2x2x9x2xi32>, tensor<1x2x9x2xi32>) -> tensor<1x2x9x8xi32>

func.func @main(%x: tensor<1x2x9x8xi16>) -> tensor<1x2x9x8xi32> {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 9, w = 8, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "a" : tensor<1x2x9x8xi16> -> tensor<1x2x9x8xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 2, c = 2, h = 9, w = 8, r = 1, s = 1>
       window <kernel = [1, 1]> then <> label "b" : tensor<1x2x9x8xi32> -> tensor<1x2x9x8xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.mac } } } }
  }
  func.return %1 : tensor<1x2x9x8xi32>
}

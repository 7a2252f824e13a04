// A residual of which another layer reads the value as its ifmap, too. One engine reads a value, so that copies do the rest.

// In a core one copy is for the commits.
// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a,b,c" places="1x2@3,0"}' | filecheck %s --check-prefix INSIDE
// INSIDE:     nest.group "a..c"
// INSIDE:       %[[A:.*]] = nest.layer "mac" {{.*}} label "a" delay 0 keeps
// INSIDE:       %[[COPY:.*]] = nest.layer "add" %[[A]] sizes <n = 1, k = 4, c = 1, h = 4, w = 4, r = 1, s = 1> window <kernel = [1, 1], group = 4> then <> label "a.for.c"
// INSIDE:       nest.layer "mac" %[[A]] {{.*}} label "b"
// INSIDE:       residual %[[COPY]] {{.*}} label "c"
// INSIDE-NOT: nest.channel

// From the core before, loads bring it for both.
// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;b,c" places="1x2@3,0;3x4@0,0"}' | filecheck %s --check-prefix BEHIND
// BEHIND:     %[[A:.*]] = nest.channel "a" %{{.*}} keeps 3
// BEHIND-NEXT: nest.group "b..c"
// BEHIND:       %[[COPY:.*]] = nest.layer "add" %[[A]] {{.*}} label "a.for.c"
// BEHIND:       nest.layer "mac" %[[A]] {{.*}} label "b"
// BEHIND:       residual %[[COPY]]

// From a core that lies further before, the core between passes it on.
// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;b;c" places="1x2@3,0;2x4@0,0;1x2@3,2"}' | filecheck %s --check-prefix OVER
// OVER:       %[[A:.*]] = nest.channel "a"
// OVER:       nest.group "b" {{.*}} : tensor<1x4x4x4xi8>, tensor<1x4x4x4xi8> {
// OVER:         nest.layer "add" %[[A]] {{.*}} label "a.to.c"
// OVER:         nest.layer "mac" %[[A]] {{.*}} label "b"
// OVER:       %[[PASSED:.*]] = nest.channel "a.to.c"
// OVER-NEXT:  %[[B:.*]] = nest.channel "b"
// OVER-NEXT:  nest.group "c"
// OVER:         %[[COPY:.*]] = nest.layer "add" %[[PASSED]] {{.*}} label "a.for.c"
// OVER:         nest.layer "mac" %[[B]] residual %[[COPY]]

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;b;c" places="1x2@3,0;2x4@0,0;1x2@3,2" keeps=1,3}' 2>&1 | filecheck %s --check-prefix FEW
// FEW: nest-cores: channel a: keeps 1 rows, the fewest are 3: with fewer, a.to.c and b wait for rows
func.func @main(%x: tensor<1x4x4x4xi8>) -> tensor<1x4x4x4xi8> {
  %0 = nest.layer "mac" %x weights @u sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 1, s = 1>
       window <kernel = [1, 1]> then <clamp = [0, 127]> label "a" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.mac } } } }
  }
  %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <clamp = [0, 127]> label "b" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %2 = nest.layer "mac" %1 residual %0 : tensor<1x4x4x4xi8> weights @w sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 1, s = 1>
       window <kernel = [1, 1]> then <factors = "f", clamp = [0, 127]> label "c" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.mac } } } }
  }
  func.return %2 : tensor<1x4x4x4xi8>
}

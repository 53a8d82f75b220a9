// Made of kernels.cu; see there.
#ifndef HOIST_TESTS_BENCH_KERNELS_PTX_H_
#define HOIST_TESTS_BENCH_KERNELS_PTX_H_

namespace hoist::bench {

inline constexpr char kKernelsPtx[] = R"ptx(

.version 6.5
.target sm_75
.address_size 64

 // .globl checksum

.visible .entry checksum(
 .param .u64 checksum_param_0,
 .param .u64 checksum_param_1,
 .param .u64 checksum_param_2
)
{
 .reg .pred  %p<17>;
 .reg .b32  %r<46>;
 .reg .b64  %rd<83>;

 ld.param.u64  %rd16, [checksum_param_0];
 ld.param.u64  %rd17, [checksum_param_1];
 ld.param.u64  %rd18, [checksum_param_2];
 mov.u32  %r1, %ntid.x;
 mov.u32  %r2, %ctaid.x;
 mov.u32  %r3, %tid.x;
 mad.lo.s32  %r4, %r2, %r1, %r3;
 cvt.u64.u32  %rd80, %r4;
 setp.ge.u64  %p1, %rd80, %rd17;
 mov.u64  %rd82, 0;
 @%p1 bra  $L__BB0_6;

 mov.u64  %rd82, 0;
 mov.u32  %r9, %nctaid.x;

$L__BB0_2:
 .pragma "nounroll";
 shl.b64  %rd25, %rd80, 4;
 add.s64  %rd24, %rd16, %rd25;
 // begin inline asm
 ld.global.cs.v2.u64 {%rd22,%rd23}, [%rd24];
 // end inline asm
 shl.b64  %rd26, %rd80, 2;
 or.b64   %rd27, %rd26, 1;
 mul.lo.s64  %rd28, %rd22, %rd27;
 or.b64   %rd29, %rd26, 3;
 mul.lo.s64  %rd30, %rd23, %rd29;
 add.s64  %rd31, %rd30, %rd82;
 add.s64  %rd82, %rd31, %rd28;
 mul.wide.u32  %rd32, %r9, %r1;
 add.s64  %rd5, %rd80, %rd32;
 setp.ge.u64  %p2, %rd5, %rd17;
 @%p2 bra  $L__BB0_6;

 shl.b64  %rd37, %rd32, 4;
 add.s64  %rd35, %rd24, %rd37;
 // begin inline asm
 ld.global.cs.v2.u64 {%rd33,%rd34}, [%rd35];
 // end inline asm
 shl.b64  %rd40, %rd5, 2;
 or.b64   %rd41, %rd40, 1;
 mul.lo.s64  %rd42, %rd33, %rd41;
 or.b64   %rd43, %rd40, 3;
 mul.lo.s64  %rd44, %rd34, %rd43;
 add.s64  %rd45, %rd44, %rd82;
 add.s64  %rd82, %rd45, %rd42;
 add.s64  %rd8, %rd5, %rd32;
 setp.ge.u64  %p3, %rd8, %rd17;
 @%p3 bra  $L__BB0_6;

 add.s64  %rd48, %rd35, %rd37;
 // begin inline asm
 ld.global.cs.v2.u64 {%rd46,%rd47}, [%rd48];
 // end inline asm
 shl.b64  %rd51, %rd8, 2;
 or.b64   %rd52, %rd51, 1;
 mul.lo.s64  %rd53, %rd46, %rd52;
 or.b64   %rd54, %rd51, 3;
 mul.lo.s64  %rd55, %rd47, %rd54;
 add.s64  %rd56, %rd55, %rd82;
 add.s64  %rd82, %rd56, %rd53;
 add.s64  %rd11, %rd8, %rd32;
 setp.ge.u64  %p4, %rd11, %rd17;
 @%p4 bra  $L__BB0_6;

 add.s64  %rd59, %rd48, %rd37;
 // begin inline asm
 ld.global.cs.v2.u64 {%rd57,%rd58}, [%rd59];
 // end inline asm
 shl.b64  %rd62, %rd11, 2;
 or.b64   %rd63, %rd62, 1;
 mul.lo.s64  %rd64, %rd57, %rd63;
 or.b64   %rd65, %rd62, 3;
 mul.lo.s64  %rd66, %rd58, %rd65;
 add.s64  %rd67, %rd66, %rd82;
 add.s64  %rd82, %rd67, %rd64;
 add.s64  %rd80, %rd11, %rd32;
 setp.lt.u64  %p5, %rd80, %rd17;
 @%p5 bra  $L__BB0_2;

$L__BB0_6:
 // begin inline asm
 mov.b64 {%r17,%r18}, %rd82;
 // end inline asm
 mov.u32  %r37, 2;
 mov.u32  %r38, 31;
 mov.u32  %r39, 16;
 mov.u32  %r40, -1;
 shfl.sync.down.b32  %r20|%p6, %r18, %r39, %r38, %r40;
 shfl.sync.down.b32  %r19|%p7, %r17, %r39, %r38, %r40;
 // begin inline asm
 mov.b64 %rd69, {%r19,%r20};
 // end inline asm
 add.s64  %rd70, %rd69, %rd82;
 // begin inline asm
 mov.b64 {%r21,%r22}, %rd70;
 // end inline asm
 mov.u32  %r41, 8;
 shfl.sync.down.b32  %r24|%p8, %r22, %r41, %r38, %r40;
 shfl.sync.down.b32  %r23|%p9, %r21, %r41, %r38, %r40;
 // begin inline asm
 mov.b64 %rd71, {%r23,%r24};
 // end inline asm
 add.s64  %rd72, %rd71, %rd70;
 // begin inline asm
 mov.b64 {%r25,%r26}, %rd72;
 // end inline asm
 mov.u32  %r42, 4;
 shfl.sync.down.b32  %r28|%p10, %r26, %r42, %r38, %r40;
 shfl.sync.down.b32  %r27|%p11, %r25, %r42, %r38, %r40;
 // begin inline asm
 mov.b64 %rd73, {%r27,%r28};
 // end inline asm
 add.s64  %rd74, %rd73, %rd72;
 // begin inline asm
 mov.b64 {%r29,%r30}, %rd74;
 // end inline asm
 shfl.sync.down.b32  %r32|%p12, %r30, %r37, %r38, %r40;
 shfl.sync.down.b32  %r31|%p13, %r29, %r37, %r38, %r40;
 // begin inline asm
 mov.b64 %rd75, {%r31,%r32};
 // end inline asm
 add.s64  %rd76, %rd75, %rd74;
 // begin inline asm
 mov.b64 {%r33,%r34}, %rd76;
 // end inline asm
 mov.u32  %r43, 1;
 shfl.sync.down.b32  %r36|%p14, %r34, %r43, %r38, %r40;
 shfl.sync.down.b32  %r35|%p15, %r33, %r43, %r38, %r40;
 // begin inline asm
 mov.b64 %rd77, {%r35,%r36};
 // end inline asm
 add.s64  %rd15, %rd77, %rd76;
 and.b32   %r45, %r3, 31;
 setp.ne.s32  %p16, %r45, 0;
 @%p16 bra  $L__BB0_8;

 cvta.to.global.u64  %rd78, %rd18;
 atom.global.add.u64  %rd79, [%rd78], %rd15;

$L__BB0_8:
 ret;

}
 // .globl spin
.visible .entry spin(
 .param .u64 spin_param_0
)
{
 .reg .pred  %p<2>;
 .reg .b64  %rd<6>;

 ld.param.u64  %rd2, [spin_param_0];
 // begin inline asm
 mov.u64  %rd3, %clock64;
 // end inline asm

$L__BB1_1:
 // begin inline asm
 mov.u64  %rd4, %clock64;
 // end inline asm
 sub.s64  %rd5, %rd4, %rd3;
 setp.lt.s64  %p1, %rd5, %rd2;
 @%p1 bra  $L__BB1_1;

 ret;

}

)ptx";

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_KERNELS_PTX_H_

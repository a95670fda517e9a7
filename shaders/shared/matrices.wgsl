// Cooperative matrices of EDGE x EDGE: f16 factors, f32 sums. The first import of a shader, since its
// directives come before everything else.

// naga takes loop counters and subgroup_id for different within a subgroup, and this is the filter it
// puts matrix operations under.
diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

const EDGE: u32 = $EDGE;

#if EDGE=16
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sums = coop_mat16x16<f32, C>;
#else
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sums = coop_mat8x8<f32, C>;
#endif

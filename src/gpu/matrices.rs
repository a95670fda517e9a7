//! Cooperative matrices: the multipliers of small tiles that GPUs have.

/// Which of them kernels use: of f16, with sums in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Rows and columns of one: 8 or 16.
    pub edge: u32,
    /// Invocations of the largest subgroup; each subgroup works on matrices of its own.
    pub lanes: u32,
}

/// What opening a device with them takes.
pub(super) const FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

impl Matrices {
    /// The largest that `adapter` has, if any.
    pub(super) fn of(adapter: &wgpu::Adapter) -> Option<Self> {
        use wgpu::CooperativeScalarType::{F16, F32};
        let all = adapter.cooperative_matrix_properties();
        let usable = all.iter().filter(|m| {
            m.m_size == m.k_size && m.n_size == m.k_size && m.ab_type == F16 && m.cr_type == F32
        });
        let lanes = adapter.get_info().subgroup_max_size;
        usable.map(|m| Self { edge: m.k_size, lanes }).max_by_key(|m| m.edge)
    }
}

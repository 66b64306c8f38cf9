//! Sources in CUDA as kernels of CubeCL: on its stream, with its memory.

use burn_dist_kernels::cuda::wgmma::{self, TensorMap, geometry};
use burn_dist_kernels::cuda::{flag_wait, invert, quantize, transpose};
use cubecl::cuda::{CudaCompiler, CudaRuntime};
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;
use cubecl::server::{
    Handle, KernelArguments, MetadataBindingInfo, TensorMapBinding, TensorMapMeta,
};
use cubecl::zspace::metadata::Metadata;
use cubecl::{CompilationError, CubeTask};
use cubecl_cpp::shared::SharedMemory;

/// A kernel in CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Task {
    Wgmma(wgmma::Kernel),
    Quantize(quantize::Kernel),
    Transpose,
    Invert,
    FlagWait,
}

/// Changes with the sources: CubeCL may keep what it has compiled from one run of a program to the next.
const REVISION: u64 = revision(&[
    wgmma::Kernel::BODY,
    wgmma::Kernel::DEVICE,
    quantize::Kernel::BODY,
    quantize::Kernel::DEVICE,
    transpose::BODY,
    invert::SOURCE,
    flag_wait::SOURCE,
]);

const fn revision(texts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut text = 0;
    while text < texts.len() {
        let bytes = texts[text].as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        text += 1;
    }
    hash
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::Wgmma(_) => wgmma::NAME,
            Self::Quantize(_) => quantize::NAME,
            Self::Transpose => transpose::NAME,
            Self::Invert => invert::NAME,
            Self::FlagWait => flag_wait::NAME,
        }
    }

    fn source(self) -> String {
        match self {
            Self::Wgmma(kernel) => kernel.source(),
            Self::Quantize(kernel) => kernel.source(),
            Self::Transpose => transpose::source(),
            Self::Invert => invert::SOURCE.into(),
            Self::FlagWait => flag_wait::SOURCE.into(),
        }
    }

    fn threads(self) -> CubeDim {
        CubeDim::new_1d(match self {
            Self::Wgmma(_) => geometry::THREADS,
            Self::Quantize(_) | Self::Transpose => transpose::THREADS,
            Self::Invert => invert::THREADS,
            Self::FlagWait => flag_wait::THREADS,
        } as u32)
    }

    /// Bytes of shared memory that are asked for at a launch.
    fn shared(self) -> usize {
        match self {
            Self::Wgmma(_) => geometry::SHARED,
            Self::Quantize(_) | Self::Transpose | Self::Invert | Self::FlagWait => 0,
        }
    }

    /// Enqueues it. Parameters of the kernel are the maps, what each of them is of, the buffers, and `info` by value.
    pub(super) fn launch(
        self,
        client: &ComputeClient<CudaRuntime>,
        blocks: usize,
        maps: &[(&Handle, TensorMap)],
        buffers: &[&Handle],
        info: Vec<u64>,
    ) {
        let length = info.len();
        let arguments = KernelArguments {
            buffers: buffers
                .iter()
                .map(|buffer| (*buffer).clone().binding())
                .collect(),
            // Nothing of it is uploaded: what lies beyond its length would be.
            info: MetadataBindingInfo::new(info, length),
            tensor_maps: maps.iter().map(|(of, map)| map_of(of, *map)).collect(),
        };
        client.launch(
            Box::new(self),
            CubeCount::Static(blocks as u32, 1, 1),
            arguments,
        );
    }
}

fn map_of(values: &Handle, map: TensorMap) -> TensorMapBinding {
    TensorMapBinding {
        binding: values.clone().binding(),
        map: TensorMapMeta {
            format: TensorMapFormat::Tiled(TiledArgs {
                tile_size: map.tile.into(),
            }),
            metadata: Metadata::new(map.shape, [map.shape[1], 1]),
            elem_stride: [1usize, 1].into(),
            interleave: TensorMapInterleave::None,
            swizzle: TensorMapSwizzle::B128,
            prefetch: TensorMapPrefetch::B256,
            oob_fill: OobFill::Zero,
            storage_ty: ElemType::UInt(UIntKind::U8).into(),
        },
    }
}

impl KernelMetadata for Task {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn id(&self) -> KernelId {
        KernelId::new::<Self>()
            .info((*self, REVISION))
            .cube_dim(self.threads())
    }

    fn address_type(&self) -> StorageType {
        ElemType::UInt(UIntKind::U32).into()
    }
}

impl CubeTask<CudaCompiler> for Task {
    fn compile(
        &self,
        compiler: &mut CudaCompiler,
        options: &<CudaCompiler as cubecl::Compiler>::CompilationOptions,
        mode: ExecutionMode,
        address_type: StorageType,
    ) -> Result<CompiledKernel<CudaCompiler>, CompilationError> {
        // A kernel without a body: CubeCL asks its representation how much shared memory there is.
        let empty = KernelDefinition {
            buffers: Vec::new(),
            tensor_maps: Vec::new(),
            scalars: Vec::new(),
            cube_dim: self.threads(),
            body: Scope::root(false),
            options: KernelOptions {
                kernel_name: (*self).name().into(),
                ..Default::default()
            },
        };
        let mut repr = cubecl::Compiler::compile(compiler, empty, options, mode, address_type)?;
        if self.shared() > 0 {
            let item = repr.body.address_type;
            let length = self.shared().div_ceil(item.size());
            repr.body
                .shared_memories
                .push(SharedMemory::new_array(0, item, length, 16));
        }
        Ok(CompiledKernel {
            entrypoint_name: (*self).name().into(),
            debug_name: Some((*self).name()),
            source: (*self).source(),
            repr: Some(repr),
            cube_dim: self.threads(),
            debug_info: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use burn_dist_kernels::cuda::product::Out;
    use burn_dist_plan::policy::Fp8::E4M3;

    use super::*;
    use cubecl::stream_id::StreamId;

    fn wgmma() -> Task {
        Task::Wgmma(wgmma::Kernel {
            formats: [E4M3; 2],
            blocks: None,
            out: Out::BF16,
            bias: false,
        })
    }

    /// CubeCL's runtime for CUDA takes this from a task.
    #[test]
    fn tasks_are_what_the_runtime_expects() {
        for (task, shared) in [
            (wgmma(), geometry::SHARED),
            (Task::Transpose, 0),
            (Task::Invert, 0),
            (Task::FlagWait, 0),
        ] {
            let mode = ExecutionMode::Checked;
            let options = Default::default();
            let address_type = task.address_type();
            let compiled = task
                .compile(&mut Default::default(), &options, mode, address_type)
                .unwrap();
            assert!(
                compiled.source.contains(&compiled.entrypoint_name)
                    || compiled.source.contains("NAME(")
            );
            assert_eq!(compiled.cube_dim, task.id().cube_dim);
            let repr = compiled.repr.expect("the runtime unwraps it");
            assert_eq!(repr.shared_memory_size(), shared);
        }
    }

    #[test]
    fn variants_are_different_kernels() {
        let other = Task::Wgmma(wgmma::Kernel {
            bias: true,
            formats: [E4M3; 2],
            blocks: None,
            out: Out::BF16,
        });
        assert_ne!(wgmma().id(), other.id());
        assert_eq!(wgmma().id(), wgmma().id());
        assert_ne!(revision(&["a", "b"]), revision(&["a", "c"]));
    }

    #[test]
    fn maps_are_of_bytes_swizzled_over_128() {
        let map = TensorMap {
            shape: [300, 144],
            tile: [256, 128],
        };
        let handle = Handle::new(StreamId { value: 0 }, 300 * 144);
        let TensorMapBinding { map, .. } = map_of(&handle, map);
        assert_eq!(map.metadata, Metadata::new([300usize, 144], [144usize, 1]));
        assert_eq!(map.swizzle, TensorMapSwizzle::B128);
        assert_eq!(map.storage_ty.size(), 1);
        let TensorMapFormat::Tiled(TiledArgs { tile_size }) = map.format else {
            panic!("tiles");
        };
        assert_eq!(tile_size.as_slice(), [256, 128]);
    }
}

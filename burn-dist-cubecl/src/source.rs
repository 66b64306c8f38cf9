//! The kernels as sources in CUDA, without a device: for compilers and for those who read what CubeCL makes of them.

use burn_dist_kernels::cuda::product::Product;
use burn_dist_plan::policy::Fp8;
use cubecl::Compiler;
use cubecl::cuda::{CudaCompiler, CudaRuntime};
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl_cpp::shared::{CompilationOptions, CppSupportedFeatures};

use crate::element::Element;
use crate::float8::Form;
use crate::float8::amax::{amax_columns, amax_rows};
use crate::float8::gemm::{Stored, products};
use crate::float8::mma::{self, StridesCompilationArg, Variant};
use crate::float8::quantize::{Places, PlacesCompilationArg, quantize_elements, quantize_words};
use crate::float8::scale::scales;
use crate::fold::fold;

/// A kernel as CubeCL hands it to NVRTC.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, which is that of the function too.
    pub name: String,
    /// The text of the program.
    pub code: String,
}

const ELEMENTS: [(&str, Element); 3] = [
    ("f32", Element::F32),
    ("f16", Element::F16),
    ("bf16", Element::Bf16),
];
const FORMATS: [(&str, Fp8); 2] = [("e4m3", Fp8::E4M3), ("e5m2", Fp8::E5M2)];

/// Returns every kernel, as it is launched for tensors of usual sizes.
pub fn sources() -> Vec<Source> {
    let mut all = Vec::new();
    for (type_name, element) in ELEMENTS {
        all.push(source(
            &format!("amax_rows_{type_name}"),
            CubeDim::new_1d(256),
            |b| {
                b.scope.register_size::<amax_rows::N>(4);
                let input = input::<Vector<u32, amax_rows::N>>(b);
                let (out, items, length) = (output::<u32>(b), scalar(b), scalar(b));
                amax_rows::expand::<amax_rows::N>(
                    &mut b.scope,
                    4,
                    input,
                    out,
                    items,
                    length,
                    element,
                    256,
                );
            },
        ));
        all.push(source(
            &format!("amax_columns_{type_name}"),
            CubeDim::new_1d(64),
            |b| {
                b.scope.register_size::<amax_columns::N>(4);
                let input = input::<Vector<u32, amax_columns::N>>(b);
                let out = output::<u32>(b);
                let (height, items, length) = (scalar(b), scalar(b), scalar(b));
                amax_columns::expand::<amax_columns::N>(
                    &mut b.scope,
                    4,
                    input,
                    out,
                    height,
                    items,
                    length,
                    element,
                );
            },
        ));
        all.push(source(
            &format!("fold_{type_name}"),
            CubeDim::new_1d(64),
            |b| {
                let (rows, out, width) = (input::<u32>(b), output::<u32>(b), scalar(b));
                fold::expand(&mut b.scope, rows, out, width, 8, element);
            },
        ));
        for (format_name, format) in FORMATS {
            all.push(quantize(type_name, element, format_name, format));
            let name = format!("quantize_elements_{type_name}_{format_name}");
            all.push(source(&name, CubeDim::new_1d(64), |b| {
                let (values, scales) = (input::<u32>(b), input::<u32>(b));
                let (out, places, elements) = (output::<u32>(b), places(b), scalar(b));
                let form = Form::Bytes;
                quantize_elements::expand(
                    &mut b.scope,
                    values,
                    scales,
                    out,
                    places,
                    elements,
                    element,
                    format,
                    form,
                );
            }));
        }
        all.push(product(type_name, element));
    }
    for (format_name, format) in FORMATS {
        all.push(source(
            &format!("scales_{format_name}"),
            CubeDim::new_1d(64),
            |b| {
                let (maxima, out) = (input::<u32>(b), output::<u32>(b));
                scales::expand(&mut b.scope, maxima, out, format, false);
            },
        ));
    }
    all
}

/// Bytes of shared memory that a cube of [`mma`] has.
pub const MMA_SHARED: usize = mma::SHARED;

/// Returns how many cubes are launched for a product by [`mma`], below each other and beside each other.
pub fn mma_cubes(product: &Product) -> [usize; 2] {
    mma::cubes(product)
}

/// Returns the kernel for a product on tensor cores, as it is launched.
pub fn mma(product: &Product) -> Source {
    let [a, b] = product.formats;
    let name = format!("float8_mma_{a}_{b}_{}", product.out.name());
    source(&name, CubeDim::new_1d(mma::UNITS as u32), |builder| {
        let types = mma::types(product);
        let scope = &mut builder.scope;
        scope.register_type::<mma::products::A>(types[0]);
        scope.register_type::<mma::products::B>(types[1]);
        scope.register_type::<mma::products::O>(types[2]);
        let [first, second] = [(); 2].map(|()| input::<mma::Words>(builder));
        let [first_scales, second_scales] = [(); 2].map(|()| input::<f32>(builder));
        let bias = input::<mma::Pair<mma::products::O>>(builder);
        let out = output::<mma::Pair<mma::products::O>>(builder);
        let [first_strides, second_strides] = [(); 2].map(|()| {
            let argument = StridesCompilationArg { row: (), block: () };
            <mma::Strides as LaunchArg>::expand(&argument, builder)
        });
        let [rows, columns, chunks] = [(); 3].map(|()| scalar(builder));
        mma::products::expand::<mma::products::A, mma::products::B, mma::products::O>(
            &mut builder.scope,
            first,
            second,
            first_scales,
            second_scales,
            bias,
            out,
            first_strides,
            second_strides,
            rows,
            columns,
            chunks,
            Variant::of(product),
            types,
        );
    })
}

/// Casts with one scale.
fn quantize(type_name: &str, element: Element, format_name: &str, format: Fp8) -> Source {
    let name = format!("quantize_words_{type_name}_{format_name}");
    source(&name, CubeDim::new_1d(64), |b| {
        let (read, written) = (4, element.per_word());
        b.scope.register_size::<quantize_words::N>(read);
        b.scope.register_size::<quantize_words::M>(written);
        let values = input::<Vector<u32, quantize_words::N>>(b);
        let scales = input::<u32>(b);
        let out = output::<Vector<u32, quantize_words::M>>(b);
        let places = places(b);
        quantize_words::expand::<quantize_words::N, quantize_words::M>(
            &mut b.scope,
            read,
            written,
            values,
            scales,
            out,
            places,
            element,
            format,
            Form::Bytes,
            true,
            false,
        );
    })
}

/// The options of CubeCL's runtime, as far as kernels depend on them.
fn options() -> CompilationOptions {
    CompilationOptions {
        supports_features: CppSupportedFeatures {
            fast_math: true,
            grid_constants: true,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// A product as of a forward, with a bias.
fn product(type_name: &str, element: Element) -> Source {
    source(
        &format!("products_{type_name}"),
        CubeDim::new_2d(16, 16),
        |b| {
            let kind = match element {
                Element::F32 => FloatKind::F32,
                Element::F16 => FloatKind::F16,
                Element::Bf16 => FloatKind::BF16,
            };
            b.scope
                .register_type::<products::O>(ElemType::Float(kind).into());
            let [first, second, first_scales, second_scales, bias] =
                std::array::from_fn(|_| input::<u32>(b));
            let out = output::<products::O>(b);
            let (first_places, second_places) = (places(b), places(b));
            let (rows, inner, columns) = (scalar(b), scalar(b), scalar(b));
            let stored = |is_last_inner: bool| Stored {
                format: Fp8::E4M3,
                form: Form::Bytes,
                is_last_inner,
            };
            products::expand::<products::O>(
                &mut b.scope,
                first,
                second,
                first_scales,
                second_scales,
                bias,
                out,
                first_places,
                second_places,
                rows,
                inner,
                columns,
                [stored(true), stored(false)],
                Some(element),
                ElemType::Float(kind).into(),
            );
        },
    )
}

/// Compiles what `build` puts together, as CubeCL's runtime does.
fn source(name: &str, cube: CubeDim, build: impl FnOnce(&mut KernelBuilder)) -> Source {
    let address = AddressType::U32;
    let settings = KernelSettings::default()
        .cube_dim(cube)
        .address_type(address)
        .kernel_name(name);
    let mut builder = KernelBuilder::default();
    builder.runtime_properties(CudaRuntime::target_properties());
    address.register(&mut builder.scope);
    build(&mut builder);
    let definition = builder.build(settings);
    let kernel = CudaCompiler::default()
        .compile(
            definition,
            &options(),
            ExecutionMode::Checked,
            address.unsigned_type(),
        )
        .expect("kernels use what CUDA has");
    Source {
        name: name.to_string(),
        code: kernel.to_string(),
    }
}

fn input<T: CubePrimitive>(builder: &mut KernelBuilder) -> NativeExpand<Array<T>> {
    let argument = ArrayCompilationArg { inplace: None };
    <Array<T> as LaunchArg>::expand(&argument, builder)
}

fn output<T: CubePrimitive>(builder: &mut KernelBuilder) -> NativeExpand<Array<T>> {
    let argument = ArrayCompilationArg { inplace: None };
    <Array<T> as LaunchArg>::expand_output(&argument, builder)
}

fn scalar(builder: &mut KernelBuilder) -> NativeExpand<usize> {
    <usize as LaunchArg>::expand(&(), builder)
}

fn places(builder: &mut KernelBuilder) -> <Places as CubeType>::ExpandType {
    let argument = PlacesCompilationArg {
        height: (),
        width: (),
        tile_height: (),
        tile_width: (),
        down: (),
        across: (),
    };
    <Places as LaunchArg>::expand(&argument, builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_source_of_its_own() {
        let all = sources();
        let mut names: Vec<&str> = all.iter().map(|source| &source.name[..]).collect();
        for source in &all {
            assert!(
                source.code.contains(&format!("{} (", source.name)),
                "{}",
                source.code
            );
            assert!(!source.code.contains("__NV_NOSAT"), "{}", source.code);
            let is_native = source.name.starts_with("quantize_native");
            assert_eq!(
                source.code.contains("__NV_SATFINITE"),
                is_native,
                "{}",
                source.code
            );
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}

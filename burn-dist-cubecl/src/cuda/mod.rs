//! Products in float8 on a GPU, by the engine that is chosen for them.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use burn_dist_kernels::cuda::engine::{Device, EngineError, Engines};
use burn_dist_kernels::cuda::product::{BLOCK, Out, Product, Scales};
use burn_dist_kernels::cuda::{flag_wait, quantize, transpose};
use burn_dist_plan::policy::{Fp8, Scaling};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cudarc::driver::result::device as driver;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

pub use call::Call;
use task::Task;

mod call;
pub mod cublaslt;
mod dsl;
pub mod linear;
mod mma;
mod task;
mod wgmma;

/// Engines on a GPU, which give a buffer.
pub type CudaEngines = Engines<Call, Handle>;

/// Returns the engines of this process: wgmma, cuBLASLt, mma, CubeCL.
///
/// The order is a choice and not a measurement: `wgmma` scales blocks and rows in the product itself and needs no wait
/// of the host, cuBLASLt is NVIDIA's, `mma` takes all scales on all tensor cores for float8, and CubeCL's kernel runs
/// everywhere and is fast nowhere.
pub fn engines() -> &'static CudaEngines {
    static ENGINES: OnceLock<CudaEngines> = OnceLock::new();
    ENGINES.get_or_init(|| {
        Engines::new(vec![
            Box::new(wgmma::Wgmma),
            Box::<cublaslt::CublasLt>::default(),
            Box::new(mma::Mma),
            Box::new(dsl::Dsl),
        ])
    })
}

/// From here on CubeCL hands a kernel its parameters by value, as those in CUDA take them; before, it hands a pointer.
const COMPUTE_MIN: (u32, u32) = (7, 0);

/// Asks the driver what engines want to know of a device.
///
/// # Errors
/// The driver's, or that the device is too old for kernels in CUDA.
pub fn device(device: &CudaDevice) -> Result<Device, String> {
    let number = i32::try_from(device.index).map_err(|error| error.to_string())?;
    let attribute = |attribute: Attribute| {
        let found = driver::get(number)
            // SAFETY: a device that the driver has just given, and it is initialised.
            .and_then(|device| unsafe { driver::get_attribute(device, attribute) });
        found
            .map(|value| value.max(0) as u32)
            .map_err(|error| error.to_string())
    };
    cudarc::driver::result::init().map_err(|error| error.to_string())?;
    let compute = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if compute < COMPUTE_MIN {
        return Err(format!(
            "its compute capability is {}.{}, and kernels in CUDA get their parameters by value from 7.0 on",
            compute.0, compute.1
        ));
    }
    Ok(Device {
        index: device.index,
        compute,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        cublaslt: cublaslt::version(),
    })
}

/// Returns what [`device`] does, which is asked once for each device; `None` if the driver does not say, which a warning says once.
pub fn known_device(of: &CudaDevice) -> Option<Device> {
    static KNOWN: Mutex<BTreeMap<usize, Option<Device>>> = Mutex::new(BTreeMap::new());
    // Entries are whole: a thread that panicked has left none half made.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = known.entry(of.index).or_insert_with(|| {
        let asked = device(of);
        asked
            .map_err(|reason| {
                tracing::warn!(
                    "float8 runs without engines and the casts of device {}: {reason}",
                    of.index
                );
            })
            .ok()
    });
    *asked
}

/// Enqueues the cast of a matrix `[rows, columns]`, by rows, to 8 bits: as it lies, transposed, or both, as the
/// kernel says.
///
/// # Errors
/// If a size is not a multiple of 16.
pub fn quantized(
    client: &ComputeClient<CudaRuntime>,
    kernel: quantize::Kernel,
    values: &Handle,
    scales: &Handle,
    [rows, columns]: [usize; 2],
) -> Result<[Option<Handle>; 2], EngineError> {
    let Some((info, blocks)) = kernel.launch(rows, columns) else {
        return Err(not_of_16(quantize::NAME, rows, columns));
    };
    let out =
        [kernel.as_is, kernel.transposed].map(|made| made.then(|| client.empty(rows * columns)));
    let buffers: Vec<&Handle> = [values, scales]
        .into_iter()
        .chain(out.iter().flatten())
        .collect();
    if blocks > 0 {
        Task::Quantize(kernel).launch(client, blocks, &[], &buffers, info);
    }
    Ok(out)
}

fn not_of_16(engine: &'static str, rows: usize, columns: usize) -> EngineError {
    let reason = format!("{rows} x {columns}: sizes have to be multiples of 16");
    EngineError::Failed { engine, reason }
}

/// Enqueues the transposition of bytes `[rows, columns]`, by rows.
///
/// # Errors
/// If a size is not a multiple of 16.
pub fn transposed(
    client: &ComputeClient<CudaRuntime>,
    values: &Handle,
    [rows, columns]: [usize; 2],
) -> Result<Handle, EngineError> {
    let Some((info, blocks)) = transpose::launch(rows, columns) else {
        let reason = format!("{rows} x {columns}: sizes have to be multiples of 16");
        return Err(EngineError::Failed {
            engine: transpose::NAME,
            reason,
        });
    };
    let out = client.empty(rows * columns);
    if blocks > 0 {
        Task::Transpose.launch(client, blocks, &[], &[values, &out], vec![info]);
    }
    Ok(out)
}

/// Enqueues a wait: what comes after it on the stream of this thread runs when it has ended.
///
/// Whatever sets the word has to have been submitted before: streams may share a queue of the hardware.
pub fn wait(client: &ComputeClient<CudaRuntime>, wait: flag_wait::Wait) {
    Task::FlagWait.launch(client, 1, &[], &[], wait.info());
}

/// Returns the engine that is first tried for the products of layers on a device, as text: its name, or one of each
/// scaling if these differ. Nothing is launched.
pub fn by_scaling(device: &Device) -> String {
    let name = |scaling| {
        let scales = match scaling {
            Scaling::Tensorwise => [Scales::Tensor; 2],
            Scaling::Rowwise => [Scales::Row; 2],
            Scaling::Blockwise128 => [Scales::Tile, Scales::Block],
        };
        let product = Product {
            m: BLOCK,
            n: BLOCK,
            k: BLOCK,
            formats: [Fp8::E4M3; 2],
            scales,
            out: Out::BF16,
            bias: false,
        };
        engines().choose(device, &product).unwrap_or(dsl::CUBECL)
    };
    let all = [Scaling::Tensorwise, Scaling::Rowwise, Scaling::Blockwise128];
    let names = all.map(name);
    match names.iter().all(|name| *name == names[0]) {
        true => names[0].to_string(),
        false => {
            let each = all.iter().zip(names);
            let each = each.map(|(scaling, name)| format!("{name} ({scaling})"));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fp8::{E4M3, E5M2};

    const TENSORS: [Scales; 2] = [Scales::Tensor; 2];
    const ROWS: [Scales; 2] = [Scales::Row; 2];
    const BLOCKS: [Scales; 2] = [Scales::Tile, Scales::Block];
    const COLUMNS: [Scales; 2] = [Scales::TileOfColumn; 2];

    #[test]
    fn engines_are_named_by_scaling_where_they_differ() {
        for (compute, cublaslt, expected) in [
            ((9, 0), None, "wgmma"),
            ((8, 9), None, "mma"),
            (
                (8, 9),
                Some(130_000),
                "cublaslt (tensorwise), mma (rowwise), mma (blockwise128)",
            ),
            ((8, 0), None, "cubecl"),
        ] {
            let device = Device {
                index: 0,
                compute,
                multiprocessors: 132,
                cublaslt,
            };
            assert_eq!(by_scaling(&device), expected);
        }
    }

    /// Devices and products are data here: nothing asks a driver.
    #[test]
    fn which_engine_computes_what() {
        let plain = Product {
            m: 2048,
            n: 4096,
            k: 4096,
            formats: [E4M3; 2],
            scales: TENSORS,
            out: Out::BF16,
            bias: true,
        };
        let library = Some(130_000);
        let of_rows = Product {
            scales: ROWS,
            ..plain
        };
        let of_blocks = Product {
            scales: BLOCKS,
            ..plain
        };
        let of_columns = Product {
            scales: COLUMNS,
            formats: [E5M2; 2],
            ..plain
        };
        let in_e5m2 = Product {
            formats: [E5M2; 2],
            ..plain
        };
        let to_f32 = Product {
            out: Out::F32,
            ..plain
        };
        let narrow = Product { n: 24, ..plain };
        for (compute, cublaslt, product, engine) in [
            ((9, 0), library, plain, Some("wgmma")),
            ((9, 0), None, of_columns, Some("wgmma")),
            ((9, 0), library, narrow, Some("cubecl")),
            ((8, 9), library, plain, Some("cublaslt")),
            ((10, 0), library, plain, Some("cublaslt")),
            ((8, 9), None, plain, Some("mma")),
            ((8, 9), library, of_rows, Some("mma")),
            ((8, 9), library, of_blocks, Some("mma")),
            ((12, 0), library, of_columns, Some("mma")),
            ((8, 9), library, in_e5m2, Some("mma")),
            ((8, 9), library, to_f32, Some("mma")),
            ((8, 9), library, narrow, Some("cubecl")),
            ((8, 0), library, plain, Some("cubecl")),
            ((8, 0), library, of_blocks, Some("cubecl")),
            ((8, 0), library, of_columns, None),
        ] {
            let device = Device {
                index: 0,
                compute,
                multiprocessors: 132,
                cublaslt,
            };
            let found = engines().choose(&device, &product);
            assert_eq!(
                found.as_ref().ok(),
                engine.as_ref(),
                "{compute:?}, {product}: {found:?}"
            );
        }
    }
}

//! Which functions are called, by cudarc as CubeCL 0.10 uses it and by burn-dist, and which of them are here.

use std::process::Command;

/// By library: what is called.
const CALLED: &[(&str, &[&str])] = &[
    (
        "libcuda.so.1",
        &[
            // CubeCL 0.10: its server, streams, fences, memory and modules.
            "cuInit",
            "cuGetErrorName",
            "cuGetErrorString",
            "cuDeviceGet",
            "cuDeviceGetCount",
            "cuDeviceGetAttribute",
            "cuDeviceTotalMem_v2",
            "cuDevicePrimaryCtxRetain",
            "cuCtxSetCurrent",
            "cuStreamCreate",
            "cuStreamSynchronize",
            "cuStreamWaitEvent",
            "cuEventCreate",
            "cuEventRecord",
            "cuEventSynchronize",
            "cuEventDestroy_v2",
            "cuMemAllocAsync",
            "cuMemAlloc_v2",
            "cuMemFreeAsync",
            "cuMemFree_v2",
            "cuMemAllocHost_v2",
            "cuMemFreeHost",
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
            "cuMemcpy2DAsync_v2",
            "cuModuleLoadData",
            "cuModuleGetFunction",
            "cuFuncSetAttribute",
            "cuLaunchKernel",
            "cuTensorMapEncodeTiled",
            "cuTensorMapEncodeIm2col",
            "cuTensorMapEncodeIm2colWide",
            // burn-dist-gpu and burn-dist-cubecl.
            "cuDeviceGetUuid_v2",
            "cuDeviceGetMemPool",
            "cuDeviceCanAccessPeer",
            "cuMemPoolSetAccess",
            "cuCtxRecordEvent",
            "cuEventQuery",
            "cuStreamWriteValue32_v2",
            "cuStreamWaitValue32_v2",
            "cuMemHostAlloc",
            "cuMemHostGetDevicePointer_v2",
            "cuMemHostRegister_v2",
            "cuMemHostUnregister",
            "cuMemcpyHtoD_v2",
            "cuMemcpyDtoH_v2",
            "cuMemcpyDtoDAsync_v2",
            "cuMemGetAllocationGranularity",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
        ],
    ),
    (
        "libnvrtc.so.13",
        &[
            "nvrtcCreateProgram",
            "nvrtcCompileProgram",
            "nvrtcGetProgramLogSize",
            "nvrtcGetProgramLog",
            "nvrtcGetPTXSize",
            "nvrtcGetPTX",
        ],
    ),
    (
        "libcublasLt.so.13",
        &[
            "cublasLtGetVersion",
            "cublasLtCreate",
            "cublasLtDestroy",
            "cublasLtMatmulDescCreate",
            "cublasLtMatmulDescDestroy",
            "cublasLtMatmulDescSetAttribute",
            "cublasLtMatrixLayoutCreate",
            "cublasLtMatrixLayoutDestroy",
            "cublasLtMatmulPreferenceCreate",
            "cublasLtMatmulPreferenceDestroy",
            "cublasLtMatmulPreferenceSetAttribute",
            "cublasLtMatmulAlgoGetHeuristic",
            "cublasLtMatmul",
        ],
    ),
    (
        "libnccl.so.2",
        &[
            "ncclGetVersion",
            "ncclGetUniqueId",
            "ncclCommInitRank",
            "ncclCommInitRankConfig",
            "ncclCommGetAsyncError",
            "ncclGroupStart",
            "ncclGroupEnd",
            "ncclCommFinalize",
            "ncclCommDestroy",
            "ncclCommAbort",
            "ncclAllGather",
            "ncclBroadcast",
            "ncclAllReduce",
            "ncclReduceScatter",
            "ncclReduce",
            "ncclSend",
            "ncclRecv",
            "ncclGetErrorString",
            "ncclGetLastError",
        ],
    ),
];

/// Not called on a device of compute capability 6.1: tensor maps came with 9.0.
const NOT_HERE: &[&str] = &[
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeIm2colWide",
];

#[test]
fn what_is_called_is_here() {
    let folder = std::env::var("LD_LIBRARY_PATH").expect("`cargo xtask cuda` sets it");
    let mut count = [0, 0];
    let mut missing = Vec::new();
    for (library, names) in CALLED {
        let path = folder
            .split(':')
            .map(|folder| format!("{folder}/{library}"));
        let path = path
            .into_iter()
            .find(|path| std::path::Path::new(path).exists());
        let path = path.unwrap_or_else(|| panic!("{library} in {folder}"));
        let listed = Command::new("nm")
            .args(["-D", "--defined-only", &path])
            .output()
            .expect("nm");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let here: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split(' ').nth(2))
            .collect();
        for name in *names {
            count[1] += 1;
            match here.contains(name) {
                true => count[0] += 1,
                false => missing.push(*name),
            }
        }
    }
    println!("{} of {} functions that are called", count[0], count[1]);
    assert_eq!(missing, NOT_HERE);
}

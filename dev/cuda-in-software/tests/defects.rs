//! Defects of programs, each sown on purpose: the driver finds it and names the call. Without the defect, the same
//! program runs without a word.
//!
//! A device that has failed stays so: each runs in a process of its own.

use cuda_in_software::{
    Done, Gpu, add_one, devices, filled, floats, follow, kernel, launch, new_event, new_stream,
    read, shape,
};
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use std::env;
use std::ffi::c_void;
use std::process::{Command, ExitCode, Stdio};
use std::ptr::null_mut;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[path = "defects/nccl.rs"]
mod nccl;

/// A program, with a defect or without.
type Program = fn(bool) -> Done;

/// What to do wrong, what the driver says, and the program.
const DEFECTS: &[(&str, &str, Program)] = &[
    (
        "no event between a write and a read",
        "cuLaunchKernel(add_one) of stream 1 writes, and nothing says",
        no_event,
    ),
    (
        "an event that is recorded before the write",
        "reads bytes from 0 on",
        early_event,
    ),
    (
        "an event of another stream",
        "which cuLaunchKernel(add_one) of stream 1 writes",
        event_of_another,
    ),
    (
        "no event between a read and a write",
        "of stream 1 reads, and nothing says which comes first",
        write_after_read,
    ),
    (
        "a stream that the host does not wait for",
        "cuMemcpyDtoH_v2 (device 0, the null stream): reads bytes",
        no_wait,
    ),
    (
        "a buffer that was freed",
        "and cuMemFree_v2 has freed",
        freed,
    ),
    (
        "a buffer that is freed while another stream uses it",
        "takes back",
        freed_too_soon,
    ),
    (
        "memory of a stream, used by another",
        "cuMemAllocAsync of stream 1 gives",
        used_too_soon,
    ),
    (
        "a buffer that is freed twice",
        "cuMemFree_v2: 0x",
        freed_twice,
    ),
    (
        "a buffer that is freed in the middle",
        "cuMemFreeAsync: takes back part of the 64 bytes",
        freed_in_the_middle,
    ),
    (
        "an index past the end",
        "cuLaunchKernel(add_one) (device 0, the null stream): reads 4 bytes at 0 bytes past the end",
        past_the_end,
    ),
    (
        "an index before the start",
        "which is no address of a device",
        before_the_start,
    ),
    (
        "a size in elements for bytes",
        "writes bytes 0 to 1023 of the 256 bytes that cuMemAlloc_v2 gave",
        elements_for_bytes,
    ),
    (
        "a copy that reaches past its source",
        "copies bytes 0 to 1023 of the 512 bytes",
        long_copy,
    ),
    (
        "a read of what nothing wrote",
        "cuLaunchKernel(add_one) (device 0, the null stream): reads bytes",
        unwritten,
    ),
    (
        "a read of what was written in part",
        "of which nothing has written byte 512",
        half_written,
    ),
    (
        "bytes that nothing wrote, copied and then read",
        "cuMemcpyDtoH_v2",
        copied_unwritten,
    ),
    (
        "a sum that starts from what nothing wrote",
        "changes bytes 0 to 3",
        atomic_unwritten,
    ),
    (
        "arguments of a copy that are swapped",
        "cuMemcpyDtoDAsync_v2: copies from",
        swapped,
    ),
    (
        "too many threads",
        "cuLaunchKernel: add_one: 2048 x 1 x 1 threads",
        too_many_threads,
    ),
    (
        "more threads than the kernel is compiled for",
        "512 threads, and it is compiled for 256",
        over_bounds,
    ),
    (
        "no blocks",
        "cuLaunchKernel: add_one: 0 x 1 x 1 blocks",
        no_blocks,
    ),
    (
        "too much shared memory",
        "cuFuncSetAttribute: add_one: 65536 bytes of shared memory",
        too_much_shared,
    ),
    (
        "a wrong kind of memory",
        "cuMemcpy2DAsync_v2: kinds of memory",
        wrong_kind,
    ),
    (
        "a pitch in elements",
        "a pitch that is less than the width",
        short_pitch,
    ),
    (
        "a parameter that is null",
        "cuLaunchKernel: add_one: parameter 1 is null",
        null_parameter,
    ),
    (
        "a stream that was destroyed",
        "cuLaunchKernel: a stream that was destroyed",
        destroyed_stream,
    ),
    (
        "an event that was destroyed",
        "cuStreamWaitEvent: an event that is not there, or was destroyed",
        destroyed_event,
    ),
    (
        "a word that is not aligned",
        "cuStreamWriteValue32_v2: 0x",
        unaligned_word,
    ),
    (
        "a callback that calls the driver",
        "cuStreamQuery: a callback calls the driver",
        calling_back,
    ),
    (
        "a kernel of another device",
        "cuLaunchKernel: add_one of device 0, on device 1",
        kernel_of_another,
    ),
    (
        "an event of another device",
        "cuEventRecord: an event of device 0, in a stream of another",
        event_of_another_device,
    ),
    (
        "memory of a device that may not be reached",
        "of Device(1), which device 0 may not reach",
        no_peer_access,
    ),
    (
        "devices that gather different counts",
        "what the members bring does not fit",
        nccl::unlike,
    ),
    (
        "room for one device's part of what is gathered",
        "writes bytes 0 to 511 of the 256 bytes",
        nccl::short,
    ),
    (
        "a device that reads what is gathered too soon",
        "which ncclAllGather of stream",
        nccl::read_too_soon,
    ),
    (
        "a device that writes again what is gathered",
        "ncclAllGather",
        nccl::written_too_soon,
    ),
];

/// Those that need two devices.
fn takes_two(name: &str) -> bool {
    name.contains("device")
}

fn no_event(wrong: bool) -> Done {
    let (kernel, from, to, out) = (add_one(), filled(&[1.0; 256]), floats(256), floats(256));
    let (first, then) = (new_stream(), new_stream());
    launch(kernel, shape(1, 256), first, &[from, to, 256])?;
    if !wrong {
        follow(first, then)?;
    } else {
        // Late, so that the order is right by chance, and found wrong all the same.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    launch(kernel, shape(1, 256), then, &[to, out, 256])?;
    wait(then)
}

fn wait(of: CUstream) -> Done {
    // SAFETY: the stream is there.
    unsafe { stream::synchronize(of) }
}

fn early_event(wrong: bool) -> Done {
    let (kernel, from, to, out) = (add_one(), filled(&[1.0; 256]), floats(256), floats(256));
    let (first, then) = (new_stream(), new_stream());
    if wrong {
        follow(first, then)?;
    }
    launch(kernel, shape(1, 256), first, &[from, to, 256])?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    if !wrong {
        follow(first, then)?;
    }
    launch(kernel, shape(1, 256), then, &[to, out, 256])?;
    wait(then)
}

fn event_of_another(wrong: bool) -> Done {
    let (kernel, from, to, out) = (add_one(), filled(&[1.0; 256]), floats(256), floats(256));
    let (first, other, then) = (new_stream(), new_stream(), new_stream());
    launch(kernel, shape(1, 256), first, &[from, to, 256])?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    follow(if wrong { other } else { first }, then)?;
    launch(kernel, shape(1, 256), then, &[to, out, 256])?;
    wait(then)
}

fn write_after_read(wrong: bool) -> Done {
    let (kernel, from, to) = (add_one(), filled(&[1.0; 256]), floats(256));
    let (first, then) = (new_stream(), new_stream());
    launch(kernel, shape(1, 256), first, &[from, to, 256])?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    if !wrong {
        follow(first, then)?;
    }
    // SAFETY: the memory is there.
    unsafe { result::memset_d8_async(from, 0, 1024, then) }?;
    wait(then)
}

fn no_wait(wrong: bool) -> Done {
    let (kernel, from, to, first) = (add_one(), filled(&[1.0; 256]), floats(256), new_stream());
    launch(kernel, shape(1, 256), first, &[from, to, 256])?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    if !wrong {
        wait(first)?;
    }
    read(to, 256).map(drop)
}

fn freed(wrong: bool) -> Done {
    let (kernel, from, to) = (add_one(), filled(&[1.0; 256]), floats(256));
    if wrong {
        // SAFETY: nothing uses it by now.
        unsafe { result::free_sync(from) }?;
    }
    launch(kernel, shape(1, 256), null_mut(), &[from, to, 256])?;
    wait(null_mut())
}

/// Memory of a stream, which holds floats.
fn of_stream(stream: CUstream) -> Done<CUdeviceptr> {
    // SAFETY: the stream orders both.
    unsafe {
        let memory = result::malloc_async(stream, 1024)?;
        result::memset_d8_async(memory, 0, 1024, stream)?;
        Ok(memory)
    }
}

fn freed_too_soon(wrong: bool) -> Done {
    let (kernel, to) = (add_one(), floats(256));
    let (first, then) = (new_stream(), new_stream());
    let from = of_stream(first)?;
    follow(first, then)?;
    launch(kernel, shape(1, 256), then, &[from, to, 256])?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    if !wrong {
        follow(then, first)?;
    }
    // SAFETY: what may still use it is what is tested.
    unsafe { result::free_async(from, first) }?;
    wait(first)
}

fn used_too_soon(wrong: bool) -> Done {
    let (first, then) = (new_stream(), new_stream());
    // SAFETY: which stream orders what is what is tested.
    unsafe {
        let memory = result::malloc_async(first, 1024)?;
        std::thread::sleep(std::time::Duration::from_millis(50));
        if !wrong {
            follow(first, then)?;
        }
        result::memset_d8_async(memory, 0, 1024, then)?;
    }
    wait(then)
}

fn freed_twice(wrong: bool) -> Done {
    let memory = floats(16);
    // SAFETY: nothing uses it.
    unsafe {
        result::free_sync(memory)?;
        if wrong {
            result::free_sync(memory)?;
        }
    }
    Ok(())
}

fn freed_in_the_middle(wrong: bool) -> Done {
    let memory = floats(16);
    // SAFETY: nothing uses it.
    unsafe { result::free_async(memory + if wrong { 32 } else { 0 }, null_mut()) }?;
    wait(null_mut())
}

fn past_the_end(wrong: bool) -> Done {
    let (kernel, from, to) = (add_one(), filled(&[1.0; 200]), floats(256));
    launch(
        kernel,
        shape(1, 256),
        null_mut(),
        &[from, to, 200 + u64::from(wrong)],
    )?;
    wait(null_mut())
}

fn before_the_start(wrong: bool) -> Done {
    let (kernel, from, to) = (add_one(), filled(&[1.0; 256]), floats(256));
    let first = [from, to].into_iter().min().unwrap_or(from) - if wrong { 4096 * 16 } else { 0 };
    let parameters = [if wrong { first } else { from }, to, 256];
    launch(kernel, shape(1, 256), null_mut(), &parameters)?;
    wait(null_mut())
}

fn elements_for_bytes(wrong: bool) -> Done {
    // SAFETY: how long the memory is is what is tested.
    unsafe {
        let memory = result::malloc_sync(if wrong { 256 } else { 1024 })?;
        result::memcpy_htod_sync(memory, &[1.0_f32; 256])
    }
}

fn long_copy(wrong: bool) -> Done {
    let (from, to) = (filled(&[1.0; 128]), floats(256));
    // SAFETY: how long the memory is is what is tested.
    unsafe { result::memcpy_dtod_async(to, from, if wrong { 1024 } else { 512 }, null_mut()) }?;
    wait(null_mut())
}

fn unwritten(wrong: bool) -> Done {
    let from = if wrong {
        floats(256)
    } else {
        filled(&[1.0; 256])
    };
    launch(
        add_one(),
        shape(1, 256),
        null_mut(),
        &[from, floats(256), 256],
    )?;
    wait(null_mut())
}

fn half_written(wrong: bool) -> Done {
    let from = floats(256);
    // SAFETY: the memory is long enough.
    unsafe { result::memset_d8_sync(from, 0, if wrong { 512 } else { 1024 }) }?;
    // One thread, so that the first that is missing is the one that is found.
    let text = "extern \"C\" __global__ void all(const float* from, float* to) {
        float sum = 0;
        for (int i = 0; i < 256; i++) sum += from[i];
        *to = sum;
    }";
    let kernel = kernel(text, "all").expect("a kernel");
    launch(kernel, shape(1, 1), null_mut(), &[from, floats(1)])?;
    wait(null_mut())
}

fn copied_unwritten(wrong: bool) -> Done {
    let from = if wrong {
        floats(256)
    } else {
        filled(&[1.0; 256])
    };
    let to = filled(&[0.0; 256]);
    // SAFETY: both are as long.
    unsafe { result::memcpy_dtod_async(to, from, 1024, null_mut()) }?;
    wait(null_mut())?;
    read(to, 256).map(drop)
}

fn atomic_unwritten(wrong: bool) -> Done {
    let text = "extern \"C\" __global__ void sum(float* to) { atomicAdd(to, 1.0f); }";
    let to = if wrong { floats(1) } else { filled(&[0.0]) };
    launch(
        kernel(text, "sum").expect("a kernel"),
        shape(1, 32),
        null_mut(),
        &[to],
    )?;
    wait(null_mut())
}

fn swapped(wrong: bool) -> Done {
    let host = [1.0_f32; 16];
    let (from, to) = (filled(&host), floats(16));
    let from = if wrong {
        host.as_ptr() as CUdeviceptr
    } else {
        from
    };
    // SAFETY: what is where is what is tested.
    unsafe { result::memcpy_dtod_async(to, from, 64, null_mut()) }?;
    wait(null_mut())
}

fn too_many_threads(wrong: bool) -> Done {
    let threads = if wrong { 2048 } else { 256 };
    launch_of(shape(1, threads))
}

fn over_bounds(wrong: bool) -> Done {
    let threads = if wrong { 512 } else { 256 };
    launch_of(shape(1, threads))
}

fn no_blocks(wrong: bool) -> Done {
    launch_of(shape(u32::from(!wrong), 256))
}

fn too_much_shared(wrong: bool) -> Done {
    let mut shape = shape(1, 256);
    shape.shared = if wrong { 64 << 10 } else { 48 << 10 };
    launch_of(shape)
}

fn launch_of(shape: cuda_in_software::Shape) -> Done {
    let (from, to) = (filled(&[1.0; 16]), floats(16));
    launch(add_one(), shape, null_mut(), &[from, to, 16])?;
    wait(null_mut())
}

fn rows(kind: sys::CUmemorytype, pitch: usize) -> Done {
    let host = [1.0_f32; 64];
    let of = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: kind,
        srcHost: host.as_ptr().cast(),
        srcDevice: 0,
        srcArray: null_mut(),
        srcPitch: 32,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: floats(1024),
        dstArray: null_mut(),
        dstPitch: pitch,
        WidthInBytes: 32,
        Height: 8,
    };
    // SAFETY: how the rows are described is what is tested.
    unsafe { sys::cuMemcpy2DAsync_v2(&of, null_mut()).result() }?;
    wait(null_mut())
}

fn wrong_kind(wrong: bool) -> Done {
    use sys::CUmemorytype::{CU_MEMORYTYPE_ARRAY as ARRAY, CU_MEMORYTYPE_HOST as HOST};
    rows(if wrong { ARRAY } else { HOST }, 512)
}

fn short_pitch(wrong: bool) -> Done {
    rows(
        sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        if wrong { 8 } else { 32 },
    )
}

fn null_parameter(wrong: bool) -> Done {
    let (from, to, count) = (filled(&[1.0; 16]), floats(16), 16_u64);
    let pointer = |of: &u64| (&raw const *of).cast_mut().cast::<c_void>();
    let second = if wrong { null_mut() } else { pointer(&to) };
    let mut all = [pointer(&from), second, pointer(&count)];
    // SAFETY: what the parameters are is what is tested.
    unsafe { result::launch_kernel(add_one(), (1, 1, 1), (16, 1, 1), 0, null_mut(), &mut all) }?;
    wait(null_mut())
}

fn destroyed_stream(wrong: bool) -> Done {
    let of = new_stream();
    if wrong {
        // SAFETY: that it is used all the same is what is tested.
        unsafe { stream::destroy(of) }?;
    }
    let (from, to) = (filled(&[1.0; 16]), floats(16));
    launch(add_one(), shape(1, 16), of, &[from, to, 16])
}

fn destroyed_event(wrong: bool) -> Done {
    let (of, event) = (new_stream(), new_event());
    // SAFETY: that it is used all the same is what is tested.
    unsafe {
        event::record(event, of)?;
        if wrong {
            event::destroy(event)?;
        }
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        stream::wait_event(of, event, flags)
    }
}

fn unaligned_word(wrong: bool) -> Done {
    let at = filled(&[0.0, 0.0]) + if wrong { 2 } else { 0 };
    // SAFETY: where the word is is what is tested.
    unsafe { sys::cuStreamWriteValue32_v2(null_mut(), at, 1, 0).result() }?;
    wait(null_mut())
}

unsafe extern "C" fn calls_the_driver(of: *mut c_void) {
    if !of.is_null() {
        // SAFETY: the driver takes any handle, and says what it is.
        let _ = unsafe { sys::cuStreamQuery(null_mut()) };
    }
}

fn calling_back(wrong: bool) -> Done {
    let data = if wrong {
        std::ptr::dangling_mut()
    } else {
        null_mut()
    };
    // SAFETY: the callback looks at no memory.
    unsafe { stream::launch_host_function(null_mut(), calls_the_driver, data) }?;
    wait(null_mut())
}

fn kernel_of_another(wrong: bool) -> Done {
    let mut kernel = add_one();
    Gpu::open(1);
    if !wrong {
        kernel = add_one();
    }
    let (from, to) = (filled(&[1.0; 16]), floats(16));
    launch(kernel, shape(1, 16), null_mut(), &[from, to, 16])?;
    wait(null_mut())
}

fn event_of_another_device(wrong: bool) -> Done {
    let mut event = new_event();
    Gpu::open(1);
    if !wrong {
        event = new_event();
    }
    // SAFETY: whose the event is is what is tested.
    unsafe { event::record(event, new_stream()) }
}

fn no_peer_access(wrong: bool) -> Done {
    Gpu::open(1);
    let from = filled(&[1.0; 16]);
    Gpu::open(0);
    if !wrong {
        // SAFETY: the context is there.
        unsafe { sys::cuCtxEnablePeerAccess(result::primary_ctx::retain(1)?, 0).result() }?;
    }
    let to = floats(16);
    launch(add_one(), shape(1, 16), null_mut(), &[from, to, 16])?;
    wait(null_mut())
}

/// Longer than any program takes that does not hang.
const LONG: Duration = Duration::from_secs(60);

/// Runs a program in a process of its own, and returns what the driver says, and whether all calls went well.
fn run(name: &str, wrong: bool) -> (String, bool) {
    let program = env::current_exe().expect("this program");
    let mut started = Command::new(program)
        .env("DEFECT", name)
        .env("WRONG", if wrong { "1" } else { "0" })
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let begun = Instant::now();
    while started.try_wait().expect("a process").is_none() {
        if begun.elapsed() > LONG {
            started.kill().expect("a process");
        }
        sleep(Duration::from_millis(5));
    }
    let done = started.wait_with_output().expect("a process");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    (said, done.status.success())
}

fn main() -> ExitCode {
    if let Ok(name) = env::var("DEFECT") {
        Gpu::open(0);
        let (_, _, program) = DEFECTS
            .iter()
            .find(|(of, ..)| *of == name)
            .expect("a defect");
        return match program(env::var("WRONG").as_deref() == Ok("1")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let two = devices() > 1;
    let part = env::args().nth(1).unwrap_or_default();
    let (mut found, mut missed) = (0, 0);
    for (name, text, _) in DEFECTS {
        if takes_two(name) && !two || !name.contains(&part) {
            continue;
        }
        let (said, _) = run(name, true);
        let (said_right, went_well) = run(name, false);
        match (said.contains(text), went_well && said_right.is_empty()) {
            (true, true) => found += 1,
            (is_found, _) => {
                missed += 1;
                let said = if is_found { said_right } else { said };
                eprintln!(
                    "{name}: {}\n{said}",
                    if is_found {
                        "found without it"
                    } else {
                        "missed"
                    }
                );
            }
        }
    }
    println!("defects: {found} found, {missed} missed");
    match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

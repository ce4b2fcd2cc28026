//! Synchronous 4 KiB writes to a file or block device, each followed by a flush: rate and processor
//! time at depth 1 and 32, through io_uring and through blocking threads.
//!
//! `cargo run --release --example device_rate -- FILE [MILLISECONDS]`; makes FILE when there is none,
//! and measures each case for that long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::Env;
use thalweg_store::device::{AlignedBuf, Device, Engine, FileDevice, FileOptions, Purpose};

const SIZE: u64 = 256 << 20;
const BLOCK: usize = 4096;

/// Processor time of the process so far, kernel included.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

async fn measure(
    env: &Env,
    device: &Arc<FileDevice>,
    span: Duration,
    depth: u64,
    flush: bool,
) -> String {
    let done = Arc::new(AtomicU64::new(0));
    let (from, spent) = (env.now(), processor_time());
    let until = from + span;
    let block = AlignedBuf::copy_of(&[0x5a; BLOCK]).freeze();
    let writers: Vec<_> = (0..depth)
        .map(|writer| {
            let (env, device) = (env.clone(), device.clone());
            let (done, block) = (done.clone(), block.clone());
            let mut at = writer * (SIZE / depth);
            env.clone().spawn(async move {
                while env.now() < until {
                    at = (at + BLOCK as u64 * 7) % SIZE;
                    device.write(at, vec![block.clone()], Purpose::UserData).await?;
                    if flush {
                        device.flush(Purpose::UserData).await?;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), thalweg_store::device::DeviceError>(())
            })
        })
        .collect();
    for writer in writers {
        if let Some(Err(error)) = writer.await {
            return error.to_string();
        }
    }
    let done = done.load(Ordering::Relaxed) as f64;
    let rate = done / env.now().since(from).as_secs_f64();
    let each = (processor_time() - spent).as_secs_f64() * 1e6 / done;
    format!("{rate:>9.0}/s  {each:>6.1} us of processor time each")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("name a file or a block device to write to")?;
    let span = std::env::args().nth(2).map_or(Ok(1000), |span| span.parse())?;
    let span = Duration::from_millis(span);
    let env = Env::real();
    if !std::path::Path::new(&path).exists() {
        let device = FileDevice::create(&path, SIZE, &FileOptions::default()).await?;
        let zeros = AlignedBuf::zeroed(1 << 20).freeze();
        for at in (0..SIZE).step_by(1 << 20) {
            device.write(at, vec![zeros.clone()], Purpose::UserData).await?;
        }
        device.flush(Purpose::UserData).await?;
    }
    for _ in 0..2 {
        for engine in [Engine::Auto, Engine::Blocking] {
            let options = FileOptions { engine, ..FileOptions::default() };
            let device = Arc::new(FileDevice::open(&path, &options).await?);
            for depth in [1, 32] {
                for flush in [false, true] {
                    let result = measure(&env, &device, span, depth, flush).await;
                    println!("{engine:?} depth {depth:>2} flush {flush:<5} {result}");
                }
            }
        }
    }
    Ok(())
}

//! Serves RAM over a Unix socket until interrupted: `nbd_memory SOCKET [MIB]`.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_env::Env;
use thalweg_nbd::{Export, Server, ServerConfig, UnixSocketOptions};

#[allow(dead_code, unreachable_pub)]
#[path = "../tests/nbd/memory.rs"]
mod memory;

/// Payloads are page-aligned blocks, for which the system's allocator would grow its heap page by page.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("usage: nbd_memory SOCKET [MIB]")?);
    let mib: u64 = match arguments.next() {
        Some(text) => text.to_str().ok_or("the size is not a number")?.parse()?,
        None => 1024,
    };
    let server = Server::new(Env::real(), ServerConfig::default());
    let volume = Arc::new(memory::MemoryVolume::new(mib << 20));
    server.add_export(Export::new("memory", volume).description("RAM"))?;
    server.listen_unix(&path, UnixSocketOptions::default(), None)?;
    println!("nbd+unix:///?socket={}", path.display());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await?;
    for (name, stats) in server.stats().commands() {
        let latency = stats.latency.latency();
        if latency.count > 0 {
            let (requests, bytes) = (latency.count, stats.bytes.get());
            println!("{name}: {requests} requests, {bytes} bytes, mean {:.1} us", latency.mean_us);
        }
    }
    Ok(())
}

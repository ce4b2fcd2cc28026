//! `imgstore`: keeps photos on a volume.
//!
//! ```text
//! thalweg volume create /srv/photos --size 1G
//! imgstore /srv/photos create
//! imgstore /srv/photos add 7 20150304 cat.jpg
//! imgstore /srv/photos taken 20150304 20150511
//! imgstore /srv/photos get 7 > cat.jpg
//! ```
//!
//! With the stores in processes of their own:
//!
//! ```text
//! thalweg serve /srv/photos &
//! imgstore /srv/photos serve images &
//! imgstore /srv/photos serve dates &
//! imgstore /srv/photos --stores processes add 8 20150510 dog.jpg
//! ```

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use imgstore::{ImgStore, Photo, process};
use thalweg_env::{Env, server_threads};
use thalweg_ipc::Connection;
use thalweg_store::pool::{OpenOptions, Pool};
use thalweg_store::txn::Transact;

/// Keep photos on a Thalweg volume, and find them by date
#[derive(Debug, Parser)]
struct Args {
    /// The volume's folder
    volume: PathBuf,
    /// Where the two stores run
    #[arg(long, value_enum, default_value_t = Stores::Libraries)]
    stores: Stores,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stores {
    /// In this process
    Libraries,
    /// In a thread each
    Threads,
    /// In a process each: `imgstore VOLUME serve images`, and `dates`
    Processes,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make room for photos on an empty volume
    Create,
    /// Add or replace a photo
    Add {
        /// Its number
        id: u64,
        /// When it was taken, any number that grows with time: 20150304
        date: u64,
        /// The image
        file: PathBuf,
    },
    /// Print a photo
    Get {
        /// Its number
        id: u64,
    },
    /// Remove a photo
    Remove {
        /// Its number
        id: u64,
    },
    /// List dates and numbers, from one date to before another
    Taken {
        /// The first date
        from: u64,
        /// The date after the last one
        to: u64,
    },
    /// Serve a store of a served volume from this process
    Serve {
        /// Its partition: images or dates
        partition: String,
    },
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("imgstore: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Outcome<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(server_threads()).enable_all().build()?;
    runtime.block_on(async {
        let env = Env::real();
        if let Command::Serve { partition } = &args.command {
            return Ok(process::serve(&env, &args.volume, partition).await?);
        }
        if let Some(served) = Connection::open(&env, &args.volume).await? {
            return execute(&env, &args, Arc::new(served)).await;
        }
        let pool = Pool::open(&env, &args.volume, &OpenOptions::default()).await?;
        let done = execute(&env, &args, Arc::new(pool.transactions().clone())).await;
        pool.close().await?;
        done
    })
}

async fn open(
    env: &Env,
    stores: Stores,
    volume: Arc<dyn Transact>,
    folder: &Path,
) -> Outcome<ImgStore> {
    Ok(match stores {
        Stores::Libraries => ImgStore::libraries(env, volume).await?,
        Stores::Threads => ImgStore::threads(env, volume).await?,
        Stores::Processes => ImgStore::processes(volume, folder),
    })
}

async fn execute(env: &Env, args: &Args, volume: Arc<dyn Transact>) -> Outcome<()> {
    if let Command::Create = args.command {
        return Ok(imgstore::create(env, &*volume).await?);
    }
    let photos = open(env, args.stores, volume, &args.volume).await?;
    let missing = |id: u64| format!("there is no photo {id}");
    match &args.command {
        Command::Add { id, date, file } => {
            let image =
                std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
            photos.add(*id, &Photo { date: *date, image: image.into() }).await?;
        }
        Command::Get { id } => {
            let photo = photos.get(*id).await?.ok_or_else(|| missing(*id))?;
            std::io::stdout().write_all(&photo.image)?;
        }
        Command::Remove { id } => {
            photos.remove(*id).await?.then_some(()).ok_or_else(|| missing(*id))?;
        }
        Command::Taken { from, to } => {
            for (date, id) in photos.taken(*from..*to).await? {
                println!("{date} {id}");
            }
        }
        Command::Create | Command::Serve { .. } => {}
    }
    Ok(())
}

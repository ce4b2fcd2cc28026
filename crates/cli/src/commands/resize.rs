//! `thalweg resize`: grows a volume and its filesystem.

use std::path::Path;

use clap::Args;
use thalweg_env::Env;

use super::ask::ask;
use super::mounted::{canonical, mount_on, server_folder};
use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::request::sizes::{Grown, Resized};
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;
use crate::target::{JournalDev, Target};

/// Make a volume larger, and its filesystem as large as the volume
///
/// Works while the volume is mounted, served or attached. No block is moved.
///
/// An in-place volume takes all of its device, after the device became larger; a file is first extended to
/// SIZE. A chained volume is extended to SIZE, if its links can hold that; thalweg volume extend adds a link.
/// Then the filesystem takes the volume's free space.
///
/// Neither becomes smaller. thalweg volume shrink cuts off the end of a chained volume, behind its last
/// partition.
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The volume's folder, the device, file or image of an in-place volume, or the filesystem's mountpoint
    #[arg(value_name = "VOLUME|DIRECTORY")]
    what: String,
    /// The new size, in mkfs's units
    size: Option<Size>,
    #[command(flatten)]
    journal: JournalDev,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(env: &Env, args: Resize) -> Outcome<()> {
    let request = Request::Resize { size: args.size.map(|size| size.0) };
    let answer = match Target::volume(&args.what) {
        Ok(target) => {
            let target = target.with_journal(args.journal.journal_dev.as_deref());
            ask(env, &target, request, args.json).await?
        }
        Err(failure) => through_mount(&args, &request, failure).await?,
    };
    let Answer::Json(answer) = answer else { return Err(unexpected_answer()) };
    if args.json {
        println!("{answer}");
        return Ok(());
    }
    let Resized { volume, filesystem } = serde_json::from_value(answer)?;
    let tell = |what: &str, grown: Grown| {
        match grown.size == grown.before {
            true => println!("{what} has {}, as before", Size(grown.size)),
            false => println!("{what} had {}, and has {}", Size(grown.before), Size(grown.size)),
        };
    };
    tell("the volume", volume);
    match filesystem {
        Some(grown) => tell("its filesystem", grown),
        None => println!("it has no filesystem"),
    }
    Ok(())
}

/// Asks the server of the filesystem that is mounted on a directory; without such a mount, returns `failure`.
async fn through_mount(args: &Resize, request: &Request, failure: Failure) -> Outcome<Answer> {
    let found = canonical(Path::new(&args.what)).and_then(|place| mount_on(&place));
    let Ok(found) = found else { return Err(failure) };
    let no_server = || {
        Failure::new(format!("the server of {} is dead", args.what))
            .help("unmount it, and name the volume")
    };
    let folder = server_folder(&found).await?.ok_or_else(no_server)?;
    let mut client = Client::connect(&folder).await?.ok_or_else(no_server)?;
    client.ask(request, &*progress::for_user(args.json)).await
}

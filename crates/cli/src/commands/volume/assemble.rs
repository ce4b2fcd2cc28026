//! `thalweg volume assemble`: makes the lost `volume.toml` of a chained volume again.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_env::Env;
use thalweg_store::device::kinds::{absolute, kind_of};
use thalweg_store::open::identity::members_in;
use thalweg_store::pool::manifest::FILE;
use thalweg_store::pool::{NamedMedia, Reassembled, Reassembly, reassemble_on};

use crate::control::Client;
use crate::devices;
use crate::failure::{Failure, Outcome};

/// Make the lost volume.toml of a chained volume again, from the labels of its devices
///
/// Name all devices of the volume, in any order: links, the map's device if it has one of its own, caches. The command refuses
/// devices of several volumes, and says which are missing. It also corrects a volume.toml that names paths that the devices no
/// longer have. Nothing is written to a device.
///
/// No label has the volume's settings (thalweg volume set), nor the address of the primary that a replica follows. They stay
/// if the old volume.toml can be read.
#[derive(Debug, Args)]
pub(crate) struct Assemble {
    /// Its files, block devices and images; a folder stands for the devices in it
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// The volume's folder [default: the one that has all devices]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Go on although sides of mirrors are missing; replace them afterwards
    #[arg(long)]
    degraded: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(env: &Env, args: &Assemble) -> Outcome<()> {
    let devices = all_devices(&args.devices)?;
    let folder = match &args.folder {
        Some(folder) => std::path::absolute(folder)?,
        None => common_folder(&devices)?,
    };
    if folder.is_dir() && Client::connect(&folder).await?.is_some() {
        return Err(Failure::new(format!("{} is served, mounted or attached", folder.display()))
            .help(format!("its {FILE} is read at the next opening: end its server first")));
    }
    let kinds = devices::known(env);
    let media = NamedMedia(kinds.clone());
    let how = Reassembly { devices, degraded: args.degraded };
    let made = reassemble_on(env, &media, &folder, &how).await;
    let made = devices::close(&kinds, made.map_err(Failure::from)).await?;
    match args.json {
        true => println!("{}", serde_json::to_string(&made)?),
        false => print(&folder, &made),
    }
    Ok(())
}

/// The devices, with those in a folder for the folder.
fn all_devices(named: &[PathBuf]) -> Outcome<Vec<PathBuf>> {
    let mut devices = Vec::new();
    for path in named {
        match kind_of(path).is_none() && path.is_dir() {
            true => match members_in(&absolute(path)?) {
                Some((_, inside)) => devices.extend(inside),
                None => {
                    return Err(Failure::new(format!(
                        "no device in {} has a label",
                        path.display()
                    ))
                    .help("name the volume's devices; thalweg dump DEVICE shows a label"));
                }
            },
            false => devices.push(absolute(path)?),
        }
    }
    Ok(devices)
}

/// The folder that has all devices.
fn common_folder(devices: &[PathBuf]) -> Outcome<PathBuf> {
    let is_file = |path: &PathBuf| kind_of(path).is_none() && path.is_file();
    let folder = devices.first().and_then(|first| first.parent());
    let is_in = |path: &PathBuf| path.parent() == folder;
    match folder {
        Some(folder) if devices.iter().all(|it| is_file(it) && is_in(it)) => Ok(folder.to_owned()),
        _ => Err(Failure::new("the devices are not files of one folder")
            .help(format!("say where {FILE} is to be: --folder FOLDER"))),
    }
}

fn print(folder: &Path, made: &Reassembled) {
    let Reassembled { name, volume, devices, .. } = made;
    let folder = folder.display();
    println!("{folder}: the volume {name} ({volume}), {devices} devices");
    for missing in &made.missing {
        println!(
            "missing: {missing}; thalweg volume status {folder} shows it, and replace or rebuild mends it"
        );
    }
    for path in &made.left_out {
        let path = path.display();
        println!(
            "left out: {path}, which a change that was interrupted had begun to use or to free"
        );
    }
    if made.lacks_primary {
        println!(
            "it follows another volume, whose address is lost: thalweg replica follow {folder} --of ADDRESS"
        );
    }
    if made.lacks_settings {
        println!("settings are lost, if it had any: thalweg volume set {folder}");
    }
}

//! Random writes of which many overwrite others, by each client into a file of its own.

use thalweg_env::Env;

use super::client_run::{ClientLoad, ClientRun, settle};
use crate::BenchError;
use crate::arion_machines::Machines;
use crate::arion_zipf::{self, ZipfWrites};
use crate::rig::{all, failed};

/// Makes the files; what each client does with its own.
pub(super) async fn prepare(
    env: &Env,
    machines: &Machines,
    scale: f64,
) -> Result<Vec<ClientLoad>, BenchError> {
    let size = arion_zipf::size(scale);
    let filling = machines.clients.iter().enumerate().map(|(number, machine)| {
        let machine = machine.clone();
        env.spawn(async move {
            let name = format!("d{number}");
            arion_zipf::fill(&*machine.subject, &name, size).await
        })
    });
    let files = all(filling.collect()).await?;
    settle(machines).await?;
    let loads = machines.clients.iter().zip(files).map(|(machine, file)| {
        let (machine, env, mut rng) = (machine.clone(), env.clone(), env.rng());
        let load = async move {
            let writes = ZipfWrites::new(size)?;
            let (begun, mut written, mut latencies) = (env.now(), 0, Vec::new());
            while written < size {
                let (offset, len) = writes.next(&mut rng);
                let start = env.now();
                machine.operation().await;
                machine.subject.write(file, offset, len as usize).await.map_err(failed)?;
                latencies.push(env.now().since(start).as_secs_f64());
                written += len;
            }
            let seconds = env.now().since(begun).as_secs_f64();
            Ok(ClientRun { seconds, done: written as f64, latencies })
        };
        Box::pin(load) as ClientLoad
    });
    Ok(loads.collect())
}

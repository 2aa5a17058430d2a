//! The committed model in Hugging Face form, and text from it.

use super::arguments::{ExportArguments, GenerateArguments};
use super::assembly::Run;
use super::role::location;
use crate::bucket::record::RunRecord;
use crate::bucket::{Ledger, Tail};
use crate::data::write_tokenizer_files;
use crate::error::{Error, Result};
use std::path::Path;
use tombolo_engine::{Model, Sampling, generate};

/// The ledger of a run as of now.
///
/// # Errors
/// The bucket does not answer, or the run has no start entry yet.
pub async fn current_ledger(run: &Run) -> Result<Ledger> {
    let mut tail = Tail::of(&run.bucket, &run.record).await?;
    tail.advance(&run.bucket, usize::MAX).await?;
    if tail.ledger.versions.is_empty() {
        return Err(Error::unavailable(format!("run {}: has no start entry in its log yet", run.record.spec.run)));
    }
    Ok(tail.ledger)
}

/// Reads the model that a ledger says is committed.
///
/// # Errors
/// Unavailable or corrupt objects.
pub async fn committed_model(run: &Run, ledger: &Ledger) -> Result<Model> {
    let parameters = run.bucket.committed(&run.fragments, &ledger.versions).await?;
    Ok(Model { config: run.record.spec.model_config(), layout: run.layout.clone(), parameters })
}

/// What an exported model of a run that chaos struck says of itself.
pub const STRUCK: &str = "`tombolo chaos` struck the run that trained this model: its islands and syncers were killed, frozen and cut off on purpose";

/// Writes a model and its tokenizer to `dir`; where the run was struck by chaos, also a README.md that says so.
///
/// # Errors
/// The folder cannot be written.
pub fn write_model(model: &Model, record: &RunRecord, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)
        .map_err(|e| Error::invalid(format!("{}: cannot be made", dir.display())).because(e))?;
    model.save(dir)?;
    write_tokenizer_files(dir).map_err(|e| Error::invalid(e.to_string()))?;
    if record.chaos {
        let path = dir.join("README.md");
        std::fs::write(&path, format!("# {}\n\n{STRUCK}.\n", record.spec.run))
            .map_err(|e| Error::invalid(format!("{}: cannot be written", path.display())).because(e))?;
    }
    Ok(())
}

/// Continues `prompt` (as bytes) by `tokens` tokens.
///
/// # Errors
/// The prompt is empty or the model is not one over bytes.
pub fn continue_text(model: &Model, prompt: &str, tokens: usize, sampling: &Sampling) -> Result<String> {
    if model.config.vocab_size != 256 {
        return Err(Error::invalid(format!(
            "expected a model over 256 byte tokens, found a vocabulary of {}",
            model.config.vocab_size
        )));
    }
    if prompt.is_empty() {
        return Err(Error::invalid("--prompt: expected at least one character, found none"));
    }
    let prompt: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let new = generate(model, &prompt, tokens, sampling)?;
    let bytes: Vec<u8> = new.iter().map(|&t| t as u8).collect();
    // A byte-level model can write bytes that are no text, and ones that a terminal would obey.
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect())
}

/// `tombolo export`.
pub async fn command(arguments: ExportArguments) -> Result<()> {
    let run = Run::open(&location(&arguments.target), arguments.target.run.as_deref()).await?;
    let ledger = current_ledger(&run).await?;
    let model = committed_model(&run, &ledger).await?;
    write_model(&model, &run.record, &arguments.dir)?;
    say!(
        "run {} after {} rounds and {} tokens: written to {}",
        run.record.spec.run,
        ledger.rounds_committed(),
        ledger.tokens(),
        arguments.dir.display()
    );
    if run.record.chaos {
        say!("{STRUCK}; README.md beside it says so");
    }
    Ok(())
}

/// `tombolo generate`.
pub fn generate_command(arguments: &GenerateArguments) -> Result<()> {
    let model = Model::load(&arguments.dir)?;
    let sampling = Sampling { temperature: arguments.temperature, top_k: arguments.top_k, seed: arguments.seed };
    let text = continue_text(&model, &arguments.prompt, arguments.tokens, &sampling)?;
    say!("{}{text}", arguments.prompt);
    Ok(())
}

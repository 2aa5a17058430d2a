//! `componentize WIT WORLD MODULE COMPONENT`: makes a core module that keeps to the canonical ABI of a world of `wit/policy.wit` a component. `cargo xtask guest` calls
//! it for the worked examples in C and AssemblyScript, so that nobody needs a further tool for them.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [wit, world, module, component] = &arguments[..] else {
        eprintln!("usage: componentize WIT WORLD MODULE COMPONENT");
        return ExitCode::from(2);
    };
    match componentize(Path::new(wit), world, module, component) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the module does not fit {world} of {wit}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn componentize(wit: &Path, world: &str, module: &str, component: &str) -> Result<(), Box<dyn Error>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit)?;
    let world = resolve.select_world(&[package], Some(world))?;
    let mut module = fs::read(module)?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    fs::write(component, ComponentEncoder::default().module(&module)?.validate(true).encode()?)?;
    Ok(())
}

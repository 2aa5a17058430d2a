//! What counting fuel costs: the same calls on two engines that differ in nothing else. The host itself has no engine without fuel.

use std::cell::RefCell;
use std::hint::black_box;

use wasmtime::component::{Component, ComponentType, Instance, Lift, Linker, Lower, ResourceAny, Val};
use wasmtime::{Config, Engine, Store};

use super::{CODECS, CONTRIBUTIONS, Job, medians, noise};
use tombolo::policy::{CHUNK_ELEMENTS, bundled_wasm};

/// As the host prepares components.
#[path = "../../host/policy/nan/mod.rs"]
#[allow(
    unused_imports,
    dead_code,
    reason = "its tests do not run here, and the name of the rewriting is for the host's cache"
)]
mod nan;

#[derive(ComponentType, Lower, Clone, Copy)]
#[component(record)]
struct At {
    tensor: u32,
    offset: u64,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct Stepped {
    parameters: Vec<f32>,
    state: Vec<Vec<f32>>,
}

type Answer<T> = (Result<T, String>,);
type Step<'a> = (ResourceAny, At, &'a [&'a [f32]], &'a [&'a [f32]], &'a [f32]);

/// An instance with an open session.
struct Guest {
    store: Store<()>,
    instance: Instance,
    interface: &'static str,
    session: ResourceAny,
}

impl Guest {
    /// The bundled policy `name` on an engine with the host's settings, with or without fuel. `others` are the arguments of `open` behind the configuration.
    fn open(name: &str, interface: &'static str, with_fuel: bool, others: &[Val]) -> Guest {
        let mut config = Config::new();
        config
            .wasm_relaxed_simd(false)
            .cranelift_nan_canonicalization(false)
            .epoch_interruption(true)
            .consume_fuel(with_fuel);
        let engine = Engine::new(&config).expect("an engine");
        let wasm = nan::canonical(bundled_wasm(name).expect("bundled")).expect("valid");
        let component = Component::new(&engine, wasm).expect("compiles");
        let mut store = Store::new(&engine, ());
        store.set_epoch_deadline(1 << 40);
        store.set_hostcall_fuel(usize::MAX);
        if with_fuel {
            store.set_fuel(u64::MAX).expect("fuel is on");
        }
        let instance = Linker::new(&engine).instantiate(&mut store, &component).expect("instantiates");
        let mut arguments = vec![Val::List(Vec::new())];
        arguments.extend_from_slice(others);
        let mut answer = [Val::Bool(false)];
        let interface_index = instance.get_export_index(&mut store, None, interface).expect("exported");
        let open = instance.get_export_index(&mut store, Some(&interface_index), "[static]session.open").expect("open");
        let open = instance.get_func(&mut store, open).expect("a function");
        open.call(&mut store, &arguments, &mut answer).expect("runs");
        let [Val::Result(Ok(Some(session)))] = answer else { panic!("{name} does not open: {answer:?}") };
        let Val::Resource(session) = *session else { panic!("{name} opens no session") };
        Guest { store, instance, interface, session }
    }

    /// Calls `method` of the session with what `arguments` makes of it.
    fn call<P, T>(&mut self, method: &str, arguments: impl FnOnce(ResourceAny) -> P) -> T
    where
        P: wasmtime::component::ComponentNamedList + Lower,
        T: Lift + ComponentType + 'static,
        Answer<T>: wasmtime::component::ComponentNamedList + Lift,
    {
        let Guest { store, instance, interface, session } = self;
        let interface = instance.get_export_index(&mut *store, None, interface).expect("exported");
        let name = format!("[method]session.{method}");
        let function = instance.get_export_index(&mut *store, Some(&interface), &name).expect("exported");
        let function = instance.get_typed_func::<P, Answer<T>>(&mut *store, &function).expect("as in the contract");
        function.call(store, arguments(*session)).expect("runs").0.expect("answers")
    }
}

fn record(fields: Vec<(&str, Val)>) -> Val {
    Val::Record(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn tensors(count: usize) -> Val {
    let shape = Val::List(vec![Val::U32(count as u32)]);
    Val::List(vec![record(vec![
        ("name", Val::String("t".into())),
        ("shape", shape),
        ("elements", Val::U64(count as u64)),
        ("kind", Val::Enum("matrix".into())),
    ])])
}

fn open_mean(with_fuel: bool, count: usize) -> Guest {
    let zero = Val::U64(0);
    let round = record(vec![
        ("index", zero.clone()),
        ("fragment", Val::U32(0)),
        ("version", Val::U64(9)),
        ("tokens-merged", zero.clone()),
        ("token-budget", zero),
    ]);
    let contribution = |index: usize| {
        record(vec![
            ("island", Val::String(format!("island-{index}"))),
            ("tokens", Val::U64(10)),
            ("steps", Val::U32(1)),
            ("staleness", Val::U32(0)),
            ("norm", Val::Float32(1.0)),
        ])
    };
    let contributions = Val::List((0..CONTRIBUTIONS).map(contribution).collect());
    let memo = Val::List(Vec::new());
    Guest::open("mean", "tombolo:policy/merge@0.1.0", with_fuel, &[round, tensors(count), contributions, memo])
}

/// Prints what the calls take with fuel, as a multiple of what they take without, for `count` values.
pub fn compare(count: usize) {
    println!("time with fuel / time without, {} Mi values, one thread", count >> 20);
    let values: Vec<Vec<f32>> = (0..CONTRIBUTIONS as u32 + 2).map(|seed| noise(seed, count)).collect();
    let at = |start: usize| At { tensor: 0, offset: start as u64 };
    let starts = || (0..count).step_by(CHUNK_ELEMENTS);

    let step = |guest: &mut Guest| {
        for start in starts() {
            let lists: Vec<&[f32]> = values.iter().map(|list| &list[start..start + CHUNK_ELEMENTS]).collect();
            let (contributions, rest) = lists.split_at(CONTRIBUTIONS);
            let stepped: Stepped =
                guest.call::<Step<'_>, _>("step", |session| (session, at(start), contributions, &rest[..1], rest[1]));
            black_box((stepped.parameters, stepped.state));
        }
    };
    let mut guests = [true, false].map(|with_fuel| open_mean(with_fuel, count));
    report("mean step", &mut guests, step);

    for name in CODECS {
        let open = |with_fuel| Guest::open(name, "tombolo:policy/codec@0.1.0", with_fuel, &[tensors(count)]);
        let mut guests = [open(true), open(false)];
        let encode = |guest: &mut Guest, start: usize| -> Vec<u8> {
            let values = &values[0][start..start + CHUNK_ELEMENTS];
            guest.call("encode", |session| (session, at(start), values))
        };
        report(&format!("{name} encode"), &mut guests, |guest| {
            starts().for_each(|start| drop(black_box(encode(guest, start))));
        });
        let encoded: Vec<Vec<u8>> = starts().map(|start| encode(&mut guests[0], start)).collect();
        report(&format!("{name} decode"), &mut guests, |guest| {
            for (start, bytes) in starts().zip(&encoded) {
                let values: Vec<f32> =
                    guest.call("decode", |session| (session, at(start), &bytes[..], CHUNK_ELEMENTS as u32));
                black_box(values);
            }
        });
    }
}

fn report(what: &str, guests: &mut [Guest; 2], work: impl Fn(&mut Guest)) {
    let [with, without] = guests.each_mut().map(RefCell::new);
    let mut jobs: Vec<Job<'_>> = vec![
        ("with".into(), Box::new(|| work(&mut with.borrow_mut()))),
        ("without".into(), Box::new(|| work(&mut without.borrow_mut()))),
    ];
    let seconds = medians(&mut jobs, 1);
    println!("{what:>24}: {:.2}", seconds[0] / seconds[1]);
}

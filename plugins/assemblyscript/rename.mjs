// Gives the exports of bf16.ts the names of the component model's canonical ABI, which are no names in TypeScript.

const role = "tombolo:policy/codec@0.1.0#";
const names = {
  open: role + "[static]session.open",
  open_done: "cabi_post_" + role + "[static]session.open",
  dropped: role + "[dtor]session",
  traits: role + "[method]session.traits",
  encode: role + "[method]session.encode",
  encode_done: "cabi_post_" + role + "[method]session.encode",
  decode: role + "[method]session.decode",
  decode_done: "cabi_post_" + role + "[method]session.decode",
};

// The compiler gives it `binaryen`.
export default class {
  afterCompile(module) {
    for (const [name, wanted] of Object.entries(names)) {
      const { value } = this.binaryen.getExportInfo(module.getExport(name));
      module.addFunctionExport(value, wanted);
      module.removeExport(name);
    }
  }
}

# Recipe for Nix: `nix-build -E '(import <nixpkgs> {}).callPackage ./packaging/nix/package.nix {}'` in
# the unpacked source archive of a release.
{ lib, python3Packages, qemu_kvm, fio, xorriso, util-linux }:
python3Packages.buildPythonApplication {
  pname = "pvebench";
  version = "0.1.0";
  pyproject = true;
  src = ../..;
  build-system = [ python3Packages.hatchling ];
  pythonRelaxDeps = true;
  dependencies = with python3Packages; [
    apprise asyncssh bcrypt click jinja2 numpy prometheus-client proxmoxer pydantic
    qemu-qmp requests rich ruamel-yaml sqlalchemy starlette structlog typing-extensions tzdata uvicorn
  ];
  makeWrapperArgs = [ "--prefix PATH : ${lib.makeBinPath [ qemu_kvm fio xorriso util-linux ]}" ];
  doCheck = false; # the tests need Debian's programs
  meta = { license = lib.licenses.asl20; mainProgram = "pvebench"; platforms = [ "x86_64-linux" ]; };
}

"""EGL devices: a fake libEGL replaces machines with several GPUs, old drivers, and drivers that crash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from powerband.core.machine import egl

SOURCE = r"""
#include <string.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
typedef unsigned int B; typedef int I;
static int ids[3] = {10, 11, 12};
static B devices(I most, void **out, I *count) {
    if (getenv("FAKE_CRASH")) abort();
    if (getenv("FAKE_HANG")) sleep(60);
    if (getenv("FAKE_REFUSES")) return 0;
    *count = getenv("FAKE_NONE") ? 0 : 3;
    for (I i = 0; i < *count; i++) out[i] = &ids[i];
    return 1;
}
/* Two GPUs that CUDA numbers in the opposite order, then Mesa's software device. */
static const char *string(void *device, I name) {
    int index = *(int *)device - 10;
    if (name == 0x3055)
        return index == 2 ? "EGL_MESA_device_software" :
            "EGL_NV_device_cuda EGL_EXT_device_persistent_id EGL_EXT_device_query_name EGL_EXT_device_drm";
    if (name == 0x335F) return "Fake GPU";
    if (name == 0x3233) return index ? "/dev/dri/card1" : "/dev/dri/card0";
    return 0;
}
static B attribute(void *device, I name, intptr_t *value) { *value = 1 - (*(int *)device - 10); return name == 0x323A; }
static B binary(void *device, I name, I most, void *value, I *size) {
    if (name != 0x335C || most < 16) return 0;
    memset(value, *(int *)device, 16); *size = 16; return 1;
}
static void *display(B platform, void *device, void *attributes) { return platform == 0x313F ? device : 0; }
static I last;
B eglInitialize(void *display, void *major, void *minor) {
    last = *(int *)display == 11 ? 0x3001 : 0x3000; return last == 0x3000; }
I eglGetError(void) { return last; }
B eglTerminate(void *display) { return 1; }
const char *eglQueryString(void *display, I name) { return name == 0x3053 ? "Fake" : ""; }
void *eglGetProcAddress(const char *name) {
    if (getenv("FAKE_OLD")) return 0;
    if (!strcmp(name, "eglQueryDevicesEXT")) return devices;
    if (!strcmp(name, "eglQueryDeviceStringEXT")) return string;
    if (!strcmp(name, "eglQueryDeviceAttribEXT")) return attribute;
    if (!strcmp(name, "eglQueryDeviceBinaryEXT")) return binary;
    if (!strcmp(name, "eglGetPlatformDisplayEXT")) return display;
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fake libEGL.so, controlled by the environment variables FAKE_*."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("egl")
    (folder / "egl.c").write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libEGL.so", folder / "egl.c"], check=True)
    return folder


@pytest.fixture
def fake(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return monkeypatch


def test_devices_in_egls_order_with_cudas_number_and_uuid(fake: pytest.MonkeyPatch) -> None:
    first, second, third = egl.egl_devices(open_each=True)
    assert [device.index for device in (first, second, third)] == [0, 1, 2]
    assert (first.cuda, second.cuda, third.cuda) == (1, 0, None)
    assert first.uuid == "0a" * 16 and second.uuid == "0b" * 16 and third.uuid == ""
    assert first.vendor == "Fake" and first.renderer == "Fake GPU" and first.drm == "/dev/dri/card0"
    assert second.error == "EGL_NOT_INITIALIZED" and second.vendor == "" and not second.software
    assert third.software and not third.error


def test_devices_are_not_opened_by_default(fake: pytest.MonkeyPatch) -> None:
    assert [(device.vendor, device.error) for device in egl.egl_devices()] == [("", "")] * 3


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FAKE_CRASH", "crashed (signal 6)"),
        ("FAKE_HANG", "did not answer within 1 s"),
        ("FAKE_REFUSES", "finds no EGL driver"),
        ("FAKE_OLD", "cannot list devices"),
    ],
)
def test_a_driver_that_fails_is_an_error_with_the_reason(fake: pytest.MonkeyPatch, variable: str, message: str) -> None:
    fake.setenv(variable, "1")
    with pytest.raises(egl.EglError) as error:
        egl.egl_devices(timeout_s=1 if variable == "FAKE_HANG" else 15)
    assert message in str(error.value)


def test_no_driver_behind_libegl_is_an_empty_list(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_NONE", "1")
    assert egl.egl_devices() == []


def test_a_broken_library_is_reported_with_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("", *(f".{number}" for number in range(10))):
        (tmp_path / f"libEGL.so{version}").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(egl.EglError, match=r"libEGL.so.*(too short|invalid ELF)"):
        egl.egl_devices()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(egl.LIBRARIES, "egl", "EGLofNobody")
    assert "libEGLofNobody.so" in egl.missing_library("egl") and "No such file" in egl.missing_library("egl")

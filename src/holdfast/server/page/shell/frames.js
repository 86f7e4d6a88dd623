// Drawing at most once a frame, however often something changes.

/**
 * @param {() => unknown} draw
 * @returns {() => void} ask for it
 */
export function oncePerFrame(draw) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      draw();
    });
  };
}

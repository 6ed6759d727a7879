"""What a training script uses: guarded steps, protected state, data that is read exactly once.

torch is imported only here, and only when a script calls `holdfast.init()`.
"""
